#!/usr/bin/env python3
"""Checks what deploy/ has for Prometheus and Grafana, with Debian's promtool: the configuration, the rules and their tests, the
queries of the dashboards, and that all of them use only metrics that exist.
usage: verify.py SOURCE_DIRECTORY
Exit code: 0 good, 1 bad, 77 skipped because promtool is missing."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

root = pathlib.Path(sys.argv[1])
rules_dir = root / "deploy/prometheus"
failed = False


def fail(text):
    global failed
    failed = True
    print(text)


def promtool(*arguments, cwd=rules_dir):
    done = subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        fail(f"promtool {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def panels_of(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def check_dashboard(path):
    """Returns its queries, as Prometheus would see them."""
    dashboard = json.loads(path.read_text())
    ids, places, queries = set(), [], []
    for panel in panels_of(dashboard):
        where = f"{path.name}, panel \"{panel.get('title')}\""
        if panel["id"] in ids:
            fail(f"{where}: id {panel['id']} occurs twice")
        ids.add(panel["id"])
        box = panel["gridPos"]
        if box["x"] + box["w"] > 24:
            fail(f"{where}: is wider than the page")
        for other in places:
            if (box["x"] < other["x"] + other["w"] and other["x"] < box["x"] + box["w"]
                    and box["y"] < other["y"] + other["h"] and other["y"] < box["y"] + box["h"]):
                fail(f"{where}: overlaps another panel")
        places.append(box)
        if panel["type"] == "row":
            continue
        if not panel.get("description"):
            fail(f"{where}: has no description")
        if not panel["targets"]:
            fail(f"{where}: has no query")
        for target in panel["targets"]:
            if target["datasource"]["uid"] != "${datasource}":
                fail(f"{where}: the data source is not the variable")
            query = target["expr"].replace("$__rate_interval", "5m").replace("$__range", "1h").replace("$instance", ".*")
            queries.append((where, query))
    return queries


def names_in(text):
    return set(re.findall(r"\b(?:withy|gen_ai)[a-z0-9_:]*[a-z0-9]", text))


def exported_metrics():
    """Names that the sources register, and those that the exporter makes."""
    names = set()
    for part in ("orchestrator", "model_worker", "serving", "store_client", "draft_worker", "context_store", "profiler_agent", "engine/session", "telemetry"):
        for source in (root / part).rglob("*.[ch]*"):
            if not source.name.endswith("_test.cc"):
                names |= set(re.findall(r'"(withy_[a-z0-9_]+)"', source.read_text()))
    return names


if shutil.which("promtool") is None:
    print("skipped: promtool is missing (apt-get install prometheus)")
    sys.exit(77)

promtool("check", "config", "prometheus.yml")
for rules in ("withy-rules.yml", "withy-alerts.yml"):
    promtool("check", "rules", rules)
promtool("test", "rules", "withy-rules_test.yml")

rules_text = (rules_dir / "withy-rules.yml").read_text()
alerts_text = (rules_dir / "withy-alerts.yml").read_text()
recorded = set(re.findall(r"record: (\S+)", rules_text))
queries = [query for path in sorted((root / "deploy/grafana").glob("*.json")) for query in check_dashboard(path)]
with tempfile.TemporaryDirectory() as scratch:
    # promtool has no check of a query alone: each becomes a rule.
    listing = {"groups": [{"name": "queries", "rules": [
        {"record": f"query:{i}", "expr": query} for i, (_, query) in enumerate(queries)]}]}
    path = pathlib.Path(scratch) / "queries.yml"
    path.write_text(json.dumps(listing))  # JSON is YAML
    promtool("check", "rules", str(path))

exported = exported_metrics()
used = [(where, name) for where, query in queries for name in names_in(query)]
for file, text in (("withy-rules.yml", rules_text), ("withy-alerts.yml", alerts_text)):
    expressions = re.sub(r"(?m)^\s*(#|- record:|- name:|summary:|description:).*$", "", text)
    used += [(file, name) for name in names_in(expressions)]
for where, name in used:
    plain = re.sub(r"_(bucket|sum|count)$", "", name)
    known = name in recorded or name in exported or plain in exported
    if not known and not name.startswith("gen_ai_"):
        fail(f"{where}: no process exports {name}, and no rule records it")

if not failed:
    print(f"verified: {len(recorded)} recorded series, {alerts_text.count('- alert:')} alerts, {len(queries)} queries of dashboards")
sys.exit(1 if failed else 0)
