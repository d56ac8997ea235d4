"""Rules: what they match, what wins, and what is no rule. Nothing is connected here."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.egress.names import parse_name
from belljar.egress.policy import Limits, Policy, parse_policy, parse_rule
from belljar.errors import InvalidInput

NAMES = [
    # policy, name, port, allowed
    ("open", "anything.test", 1, True),
    ("off", "anything.test", 443, False),
    (["pypi.org"], "pypi.org", 443, True),
    (["pypi.org"], "pypi.org", 22, True),
    (["pypi.org"], "files.pypi.org", 443, False),
    (["pypi.org"], "notpypi.org", 443, False),
    (["PyPI.org."], "pypi.org", 443, True),
    (["*.pythonhosted.org"], "files.pythonhosted.org", 443, True),
    (["*.pythonhosted.org"], "a.b.pythonhosted.org", 443, True),
    (["*.pythonhosted.org"], "pythonhosted.org", 443, False),
    (["*.pythonhosted.org"], "evilpythonhosted.org", 443, False),
    (["*.pythonhosted.org"], "files.pythonhosted.org.evil.test", 443, False),
    (["example.com:443"], "example.com", 443, True),
    (["example.com:443"], "example.com", 80, False),
    (["example.com:443", "example.com:80"], "example.com", 80, True),
    (["*.example.com:443"], "a.example.com", 80, False),
    (["bücher.example"], "xn--bcher-kva.example", 443, True),
    (["_srv.example.com"], "_srv.example.com", 443, True),
    (["10.1.2.0/24"], "ten.test", 443, False),
    ([], "pypi.org", 443, False),
    ({"mode": "open", "deny": ["evil.test"]}, "evil.test", 443, False),
    ({"mode": "open", "deny": ["evil.test"]}, "sub.evil.test", 443, True),
    ({"mode": "open", "deny": ["*.evil.test"]}, "sub.evil.test", 443, False),
    ({"mode": "open", "deny": ["evil.test:25"]}, "evil.test", 443, True),
    ({"mode": "open", "deny": ["evil.test:25"]}, "evil.test", 25, False),
    ({"mode": "allow-list", "allow": ["*.test"], "deny": ["evil.test"]}, "evil.test", 443, False),
    ({"mode": "allow-list", "allow": ["evil.test"], "deny": ["*.test"]}, "evil.test", 443, False),
    ({"mode": "allow-list", "allow": ["*.test"], "deny": ["evil.test"]}, "good.test", 443, True),
    ({"mode": "off", "allow": ["good.test"]}, "good.test", 443, False),
    ({"mode": "open", "allow": ["good.test"]}, "other.test", 443, True),
]
ADDRESSES = [
    ("open", "1.2.3.4", 80, True),
    ("off", "1.2.3.4", 80, False),
    (["1.2.3.4"], "1.2.3.4", 80, True),
    (["1.2.3.4"], "1.2.3.5", 80, False),
    (["1.2.3.0/24:5432"], "1.2.3.77", 5432, True),
    (["1.2.3.0/24:5432"], "1.2.3.77", 5433, False),
    (["2001:db8::/32"], "2001:db8::5", 443, True),
    (["[2001:db8::5]:443"], "2001:db8::5", 443, True),
    (["[2001:db8::5]:443"], "2001:db8::5", 80, False),
    (["example.com"], "1.2.3.4", 443, False),
    (["0.0.0.0/0"], "2001:db8::5", 443, False),
    ({"mode": "open", "deny": ["1.2.3.0/24"]}, "1.2.3.4", 80, False),
    ({"mode": "allow-list", "allow": ["1.2.3.4"], "deny": ["0.0.0.0/0:80"]}, "1.2.3.4", 80, False),
]


@pytest.mark.parametrize(("policy", "name", "port", "allowed"), NAMES)
def test_names(policy: object, name: str, port: int, allowed: bool) -> None:
    decision = parse_policy(policy).judge_name(name, port)
    assert decision.allowed is allowed, decision
    assert decision.rule and decision.reason


@pytest.mark.parametrize(("policy", "address", "port", "allowed"), ADDRESSES)
def test_literal_addresses(policy: object, address: str, port: int, allowed: bool) -> None:
    decision = parse_policy(policy).judge_address(ipaddress.ip_address(address), port)
    assert decision.allowed is allowed, decision


def test_a_lookup_is_allowed_when_any_port_might_be() -> None:
    policy = parse_policy({"allow": ["a.test:443"], "deny": ["b.test:25"]})
    assert policy.judge_name("a.test").allowed
    assert not policy.judge_name("other.test").allowed
    assert parse_policy({"mode": "open", "deny": ["b.test:25"]}).judge_name("b.test").allowed
    assert not parse_policy({"mode": "open", "deny": ["b.test"]}).judge_name("b.test").allowed


def test_a_decision_names_its_rule() -> None:
    policy = parse_policy({"allow": ["*.a.test"], "deny": ["x.a.test"]})
    assert policy.judge_name("y.a.test", 443).rule == "allow *.a.test"
    assert policy.judge_name("x.a.test", 443).rule == "deny x.a.test"
    assert policy.judge_name("b.test", 443).reason == "not on the allow list"
    assert "port 80" in parse_policy(["c.test:443"]).judge_name("c.test", 80).reason


@pytest.mark.parametrize(
    "rule",
    [
        "",
        " ",
        "*",
        "*.",
        "a.*.test",
        "**.test",
        "*test",
        "https://a.test",
        "a.test/path",
        "a.test:0",
        "a.test:65536",
        "a.test:x",
        "a.test:",
        "1.2.3.4/33",
        "1.2.3.4/24",
        "1.2.3",
        "0x7f.1",
        "2130706433",
        "1.2.3.4:99999",
        "[::1",
        "[::1]x",
        "fe80::1%eth0",
        "-a.test",
        "a-.test",
        "a..test",
        "a b.test",
        "a\0.test",
        "x" * 64 + ".test",
        ".".join(["x" * 60] * 5),
        "127.0.0.1.",
        "\ud800.test",
    ],
)
def test_what_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(InvalidInput):
        parse_policy([rule])


@pytest.mark.parametrize(
    "policy",
    [
        7,
        None,
        "shut",
        {"mode": "shut"},
        {"modes": "open"},
        {"allow": "pypi.org"},
        {"allow": [7]},
        {"allow": ["a.test"] * 1001},
        {"limits": 7},
        {"limits": {"connections": -1}},
        {"limits": {"connections": 513}},
        {"limits": {"bytes": True}},
        {"limits": {"bytes": 1.5}},
        {"limits": {"packets": 1}},
        {"limits": {"bytes_per_second": "1"}},
    ],
)
def test_what_is_no_policy_is_refused(policy: object) -> None:
    with pytest.raises(InvalidInput):
        parse_policy(policy)


def test_an_empty_list_is_off_and_a_policy_survives_its_json() -> None:
    assert parse_policy([]).mode == "off"
    policy = parse_policy(
        {
            "allow": ["A.test", "*.b.test:443", "10.0.0.0/8:5432", "::1"],
            "deny": ["c.test"],
            "limits": {"connections": 3, "bytes": 9},
        }
    )
    assert policy.mode == "allow-list"
    assert parse_policy(policy.to_json()) == policy
    assert policy.to_json()["allow"] == ["a.test", "*.b.test:443", "10.0.0.0/8:5432", "::1"]


def test_the_stricter_limit_counts() -> None:
    assert Limits(10, 0, 5).within(Limits(256, 100, 0)) == Limits(10, 100, 5)
    assert Limits(500, 200, 0).within(Limits(256, 100, 0)) == Limits(256, 100, 0)


LABEL = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?", fullmatch=True)


@given(st.lists(LABEL, min_size=1, max_size=6), st.booleans(), st.booleans())
def test_every_spelling_of_a_name_is_one_name(labels: list[str], dot: bool, upper: bool) -> None:
    name = ".".join([*labels, "test"])
    spelt = (name.upper() if upper else name) + ("." if dot else "")
    assert parse_name(spelt) == name
    assert parse_policy([spelt]).judge_name(name, 1).allowed


@given(st.text(max_size=300))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        rule = parse_rule(text)
    except ValueError:
        return
    assert parse_rule(rule.text) == rule
    assert Policy("allow-list", (rule,)).to_json()["allow"] == [rule.text]


@given(LABEL, LABEL)
def test_a_star_needs_something_in_its_place(label: str, suffix: str) -> None:
    policy = parse_policy([f"*.{suffix}.test"])
    assert policy.judge_name(f"{label}.{suffix}.test", 1).allowed
    assert not policy.judge_name(f"{suffix}.test", 1).allowed
    assert not policy.judge_name(f"{label}{suffix}.test", 1).allowed or label + suffix == suffix
