"""The manifest for KubeRay agrees with Ray's schema, with our settings, and with the image.

Nothing here has run on Kubernetes.
"""

import importlib
import re
from pathlib import Path
from typing import Any  # Any: what YAML holds

import pytest
import yaml

from jitney.errors import ConfigError

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def spec() -> Any:
    return yaml.safe_load((DEPLOY / "kuberay.yaml").read_text(encoding="utf-8"))["spec"]


@pytest.fixture(scope="module")
def application(spec: Any) -> Any:
    (only,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    return only


def test_ray_can_read_its_part_of_the_manifest(spec: Any) -> None:
    """Guards names of fields: Serve refuses or ignores those that it does not know."""
    schema = pytest.importorskip("ray.serve.schema", reason="Ray is not installed here")
    on_ray = pytest.importorskip("jitney_cluster.on_ray", reason="Ray is not installed here")
    given = yaml.safe_load(spec["serveConfigV2"])
    read = schema.ServeDeploySchema.model_validate(given).model_dump(exclude_unset=True)
    (application,) = read["applications"]
    assert application.keys() == given["applications"][0].keys()
    (deployment,) = application["deployments"]
    assert deployment.keys() == given["applications"][0]["deployments"][0].keys()
    assert deployment["name"] == on_ray.DEPLOYMENT
    assert application["name"] == on_ray.APPLICATION


def test_the_application_takes_its_arguments(application: Any) -> None:
    """Guards the arguments against settings that were renamed under them."""
    pytest.importorskip("ray.serve", reason="Ray is not installed here")
    module, _, name = application["import_path"].partition(":")
    build = getattr(importlib.import_module(module), name)
    assert build(dict(application["args"])) is not None
    with pytest.raises(ConfigError, match="replica_count"):
        build({**application["args"], "replica_count": 3})


def test_a_worker_has_room_for_a_replica(spec: Any, application: Any) -> None:
    """Guards numbers that stand in several places: replicas that fit on no worker never start."""
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    (deployment,) = application["deployments"]
    cores = deployment["ray_actor_options"]["num_cpus"]
    assert (
        application["args"]["replicas"] == workers["replicas"] * deployment["max_replicas_per_node"]
    )
    assert application["args"]["threads"] == cores < int(container["resources"]["limits"]["cpu"])


def test_versions_and_model_are_those_of_the_image(spec: Any, application: Any) -> None:
    """Guards against workers of another Ray than the head's, and a model that is not there."""
    ray = re.search(r"^ray==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert ray is not None
    assert spec["rayClusterConfig"]["rayVersion"] == ray[1]
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f"ARG MODEL={application['args']['model']}\n" in dockerfile
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    head = spec["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    images = {each["containers"][0]["image"] for each in (head, workers["template"]["spec"])}
    assert len(images) == 1
