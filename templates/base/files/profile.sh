# Login shells start with the virtual environment that every process of the sandbox has.
export VIRTUAL_ENV=/opt/venv
case ":$PATH:" in
*:/opt/venv/bin:*) ;;
*) PATH=/opt/venv/bin:$PATH ;;
esac
