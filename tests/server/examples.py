"""The examples of published documents: which are run, and which cannot be yet."""

from __future__ import annotations

from dataclasses import dataclass

EXAMPLES = "examples"
AGENT = "How to Give Your AI Agent a Sandbox"
INTERPRETER = "Build a Code Interpreter with a Python Sandbox"
AGENTS = "AI agents"
ALTERNATIVE = "An Open-Source OpenAI Code Interpreter Alternative"
SANDBASE_PAGE = "SandBase: code_interpreter"


@dataclass(frozen=True)
class Example:
    """A program of a document, in `tests/clients/documents`, and what it must print."""

    file: str
    document: str
    what: str
    prints: str

    @property
    def row(self) -> str:
        return f"{self.document}: {self.what}"


PROGRAMS = (
    Example("agent_tool", AGENT, "the tool function, a sandbox per task", "5050\n"),
    Example("agent_session", AGENT, "a sandbox per session", "written\nread one\n"),
    Example("interpreter_loop", INTERPRETER, "write code, exec, capture output", "total: 13.07"),
    Example("interpreter_plot", INTERPRETER, "reading back plots", "pulled "),
    Example("interpreter_session", INTERPRETER, "a long-lived sandbox", "rows: 1000\n\nmax y: 998001\n"),
    Example("interpreter_tool", INTERPRETER, "an agent's tool", "{'exit_code': 0, 'stdout': '1024\\n', 'stderr': ''}\n"),
    Example("agents_turn", AGENTS, "a sandbox per turn, its tool alone, with `from belljar import Sandbox`", "'42\\n'\n'no\\n'\n"),
    Example(
        "agents_explore",
        AGENTS,
        "fork on explore, with `from belljar import Sandbox`",
        "fillna True None\ndropna True None\ninterpolate True None\n",
    ),
    Example("results_context", ALTERNATIVE, "rich results in Python", "\n1\n"),
)
OTHERS = {
    "document": f"{ALTERNATIVE}: rich results in TypeScript (with the client's own names: `Client`, `kill`)",
    "curl": f"{SANDBASE_PAGE}: the two curl lines",
    "pipeline": f"{SANDBASE_PAGE}: the full example",
    "options": f"{SANDBASE_PAGE}: the two bodies with options",
}


def example_rows() -> list[str]:
    return [*(example.row for example in PROGRAMS), *OTHERS.values()]


NOT_YET = f"""
Programs are run as the documents have them, with another address and token in the environment. The documents name the variable
`PANDASTACK_TOKEN`; the published clients read `PANDASTACK_API_KEY`.

`Sandbox(template=…)`, `run` and `close` of "{AGENTS}" were never in the published client; Belljar's own has them.

Not run: the loops with a model of "{AGENT}" and "{AGENTS}" need a model provider (the tools they call are in
the rows above). The pattern of "{AGENTS}" with a volume needs volumes, which do not exist yet. `pip install` inside a sandbox
is tested with an index of the tests' own.
"""
