"""What belongs to no dialect: health, version, metrics, the event log."""

from __future__ import annotations

import json
import re

import pandastack
import requests

from tests.server.conftest import Api, Server


def test_health_version_and_metrics_need_no_token(server: Server, box: pandastack.Sandbox) -> None:
    assert requests.get(f"{server.url}/healthz", timeout=30).json() == {"status": "ok"}
    assert requests.get(f"{server.url}/version", timeout=30).json()["name"] == "belljar"
    box.exec("true")
    text = requests.get(f"{server.url}/metrics", timeout=30).text
    assert re.search(r'^belljar_sandboxes\{state="running"\} [1-9]', text, re.M)
    assert re.search(r'^belljar_requests_total\{route="/v1/sandboxes/\{id\}/exec",method="POST",status="200"\} [1-9]', text, re.M)
    assert re.search(r"^belljar_create_duration_seconds_count [1-9]", text, re.M)
    assert box.id not in text


def test_events_can_be_followed(api: Api, box: pandastack.Sandbox) -> None:
    last = api("GET", "/v1/events").json()["events"][-1]["seq"]
    with api("GET", f"/v1/events?follow=1&after={last}", stream=True) as stream:
        box.pause()
        box.resume()
        told = []
        for line in stream.iter_lines():
            if line.startswith(b"data: "):
                told.append(json.loads(line.removeprefix(b"data: ")))
                if len(told) == 2:
                    break
    assert [(event["sandbox_id"], event["type"]) for event in told] == [(box.id, "sandbox.paused"), (box.id, "sandbox.resumed")]
