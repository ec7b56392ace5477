"""Builds scenarios of slots in a line, and runs them.

answer(nodes=[gpus("n1", 2)], models=[model("m", memory="15Gi")], runners=[runner("n1")], requests=["m"])
"""

import json

import msgspec

from allocations.scenario import parse_scenario, run_scenario

GI = 1 << 30


def gpus(name, count, *, memory="40Gi", sick=(), links=(), labels=None, **more):
    """A node."""
    devices = [
        {
            "minor": minor,
            "uuid": f"GPU-{name}-{minor}",
            "model": "H100",
            "memory": memory if isinstance(memory, str) else memory[minor],
            "healthy": minor not in sick,
        }
        for minor in range(count)
    ]
    return {"name": name, "devices": devices, "links": [list(link) for link in links], "labels": labels or {}, **more}


def model(name, runtime="ollama", memory="15Gi", **more):
    """A model."""
    given = {} if memory is None else {"memory": memory}
    return {"name": name, "runtime": runtime, **given, **more}


def runner(node, *slots, runtimes=("ollama", "vllm", "llamacpp", "simulated"), models=(), **more):
    """A runner that has every runtime."""
    return {"node": node, "runtimes": list(runtimes), "models": list(models), "slots": list(slots), **more}


def slot(name, model, gpus=0, memory="15Gi", *, idle=0, **more):
    """A ready slot on one GPU, or several."""
    places = gpus if isinstance(gpus, list) else [gpus]
    amounts = memory if isinstance(memory, list) else [memory] * len(places)
    return {"id": name, "model": model, "gpus": places, "memory": amounts, "idleSeconds": idle, **more}


def running(name, node, minor, memory):
    """A pod that holds memory of a GPU."""
    held = {"gpu": [{"minor": minor, "resources": {"koordinator.sh/gpu-memory": memory}}]}
    return {
        "metadata": {
            "name": name,
            "annotations": {"scheduling.koordinator.sh/device-allocated": json.dumps(held)},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "resources": {"limits": {"koordinator.sh/gpu-memory": memory}}}],
        },
    }


def asking(name, **limits):
    """A pod that waits."""
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


def answer(*, nodes, models=(), runners=(), requests=(), pods=(), headers=None, **more):
    """The result as JSON has it. `requests`: names of models, or whole ones."""
    listed = [
        {"id": f"r{place}", **({"model": one} if isinstance(one, str) else one)}
        for place, one in enumerate(requests, start=1)
    ]
    scenario = parse_scenario(
        {
            "nodes": nodes,
            "models": list(models),
            "runners": list(runners),
            "requests": listed,
            "pods": list(pods),
            **more,
        }
    )
    result = run_scenario(scenario, headers=headers) if headers else run_scenario(scenario)
    return json.loads(msgspec.json.encode(result))


def placed(result):
    """Slot → (runner, gpus), those that go for it behind."""
    return {
        one["id"]: (one["runner"], list(one["gpus"]), *one["evicts"])
        if one["evicts"]
        else (one["runner"], list(one["gpus"]))
        for one in result["slots"]
    }


def served(result):
    """Request → slot."""
    return {one["id"]: one["slot"] for one in result["requests"]}


def reasons(result):
    """Request → why it waits, those that wait."""
    return {one["id"]: one["reason"] for one in result["requests"] if one["slot"] is None}


def used(result):
    """Node → GiB used of each GPU."""
    return {name: [one["memory_used"] / GI for one in devices] for name, devices in result["fleet"].items()}
