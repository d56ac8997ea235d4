import shlex

from belljar import Sandbox

with Sandbox(template="code-interpreter") as sb:
    for code in ["print(6 * 7)", "import sys; sys.exit('no')"]:  # what a model would have asked for
        result = sb.run(f"python -c {shlex.quote(code)}")
        print(repr(result.stdout + result.stderr))
