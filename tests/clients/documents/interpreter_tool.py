from pandastack import Sandbox

class CodeInterpreter:
    def __init__(self):
        self.sbx = Sandbox.create(template="code-interpreter", persistent=True)
        self._n = 0

    def run(self, code: str) -> dict:
        """Tool the model calls. Returns a dict you serialize back to it."""
        self._n += 1
        path = f"/workspace/cell_{self._n}.py"
        self.sbx.filesystem.write(path, code)
        r = self.sbx.exec(f"python3 {path}", timeout_seconds=60)
        return {"exit_code": r.exit_code, "stdout": r.stdout, "stderr": r.stderr}

    def close(self):
        self.sbx.kill()

interp = CodeInterpreter()
print(interp.run("print(2 ** 10)"))
interp.close()
