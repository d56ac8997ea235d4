from pandastack import Sandbox

# Per-session: one VM for the whole conversation.
sb = Sandbox.create(template="code-interpreter", ttl_seconds=1800)
try:
    def run_code(code: str) -> str:
        r = sb.run_code(code, language="python")
        return (r.stdout + (r.stderr if r.exit_code else "")).strip()
    # ... run the agent loop here, all calls share `sb` ...
    print(run_code("open('/workspace/step', 'w').write('one'); print('written')"))
    print(run_code("print('read', open('/workspace/step').read())"))
finally:
    sb.kill()  # always tear down; ttl_seconds is the backstop
