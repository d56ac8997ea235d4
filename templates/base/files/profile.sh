# Login shells start with the virtual environment that every process of the sandbox has.
export VIRTUAL_ENV=/opt/venv
case ":$PATH:" in
*:/opt/venv/bin:*) ;;
*) PATH=/opt/venv/bin:$PATH ;;
esac

# And with the authorities that every process of the sandbox trusts, for shells that start with an empty environment.
for name in SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_CERT GIT_SSL_CAINFO; do
    eval "export $name=\${$name:-/etc/ssl/certs/ca-certificates.crt}"
done
unset name
export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-/etc/ssl/belljar.pem}"
