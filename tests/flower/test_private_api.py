"""What we count on in flwr beyond its documented packages, name by name: another version is noticed here, loudly."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.superlink.grid import HttpGrid
from flwr.supernode import start_client_internal

import fedtailor
from fedtailor.flower import MADE_FOR, private, worker
from fedtailor.flower.private.grid import grid_over
from fedtailor.flower.private.supernode import look_otherwise
from fedtailor.flower.private.tasks import act_as, named

PACKAGE, PRIVATE = Path(fedtailor.__file__).parent, Path(private.__file__).parent
DOCUMENTED = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}
PARAMETERS = {
    "flwr.cli.build:build_fab_from_disk": "app",
    "flwr.supercore.app_utils:start_parent_process_monitor": "parent_pid",
    "flwr.supercore.control:ControlHttpClient.from_server_address": (
        "server_address insecure root_certificates interceptors retry_invoker"
    ),
    "flwr.supercore.heartbeat:HeartbeatSender": "heartbeat_fn",
    "flwr.supercore.heartbeat:HeartbeatSender.start": "self",
    "flwr.supercore.heartbeat:HeartbeatSender.stop": "self",
    "flwr.supercore.inflatable.inflatable_protobuf_utils:make_confirm_message_received_fn_protobuf": (
        "confirm_message_received_protobuf node run_id"
    ),
    "flwr.supercore.inflatable.inflatable_protobuf_utils:make_pull_object_fn_protobuf": (
        "pull_object_protobuf node run_id"
    ),
    "flwr.supercore.inflatable.inflatable_object:get_object_type_from_object_content": "object_content",
    "flwr.supercore.inflatable.inflatable_object:iterate_object_tree": "tree",
    "flwr.supercore.inflatable.inflatable_utils:ObjectPullError": "object_id reason",
    "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents": (
        "object_id object_contents keep_object_contents objects"
    ),
    "flwr.supercore.inflatable.inflatable_utils:pull_objects": (
        "object_ids pull_object_fn max_concurrent_pulls max_time max_tries_per_object initial_backoff backoff_cap"
    ),
    "flwr.supercore.interceptors:RuntimeTokenHttpInterceptor": "token",
    "flwr.supercore.interceptors:SuperExecAuthHttpInterceptor": "master_secret protected_methods",
    "flwr.supercore.interceptors:RuntimeVersionHttpInterceptor": "component_name",
    "flwr.supercore.primitives.asymmetric:bytes_to_public_key": "public_key_bytes",
    "flwr.supercore.primitives.asymmetric:verify_signature": "public_key message signature",
    "flwr.supercore.protobuf.client:ProtobufRequestContext": "rpc_method message request",
    "flwr.supercore.retry:RetryInvoker": (
        "wait_gen_factory recoverable_exceptions max_tries max_time on_success on_backoff on_giveup jitter "
        "should_giveup wait_function"
    ),
    "flwr.supercore.retry:exponential": "base_delay multiplier max_delay",
    "flwr.supercore.runtime:RuntimeHttpClient.from_server_address": (
        "server_address insecure root_certificates interceptors retry_invoker"
    ),
    "flwr.supercore.run:Run.create_empty": "run_id",
    "flwr.superlink.cli.flower_superlink:SuperLinkLifespan": "config state_factory",
    "flwr.superlink.cli.flower_superlink:_parse_superlink_lifespan_config": "",
    "flwr.superlink.grid:HttpGrid": "runtime_api_address insecure root_certificates token",
    "flwr.superlink.grid:HttpGrid.set_run": "self run",
    "flwr.superlink.grid:InMemoryGrid": "state_factory pull_interval",
    "flwr.superlink.main:create_app": "config superlink_lifespan_class",
    "flwr.supernode:start_client_internal._pull_and_store_message": (
        "state object_store node_config receive get_run get_fab pull_object confirm_message_received trusted_entities"
    ),
    "flwr.supernode.cli.flower_supernode:flower_supernode": "",
    "flwr.supernode.runtime.run_clientapp:push_message": "client message context",
}
FIELDS = {  # of messages on the wire that we name: those that we write or read
    "flwr.proto.control_pb2:ListNodesRequest": "",
    "flwr.proto.control_pb2:RegisterNodeRequest": "public_key name",
    "flwr.proto.control_pb2:StartRunRequest": "fab override_config",
    "flwr.proto.control_pb2:UnregisterNodeRequest": "node_id",
    "flwr.proto.fab_pb2:Fab": "hash_str content",
    "flwr.proto.fleet_pb2:PushMessagesRequest": "message_object_trees",
    "flwr.proto.node_pb2:Node": "node_id",
    "flwr.proto.node_pb2:NodeInfo": "node_id status last_activated_at last_deactivated_at public_key",
    "flwr.proto.runtime_pb2:AcquireTaskRequest": "supported_task_types",
    "flwr.proto.runtime_pb2:PullAppMessagesRequest": "",
    "flwr.proto.runtime_pb2:PushTaskOutputRequest": "sub_status",
    "flwr.proto.runtime_pb2:PullTaskInputRequest": "",
    "flwr.proto.runtime_pb2:SendTaskHeartbeatRequest": "",
    "flwr.proto.transport_pb2:Scalar": "string",
}
GIVEN = {  # and of those that come without being named
    "flwr.proto.control_pb2:ListNodesResponse": "nodes_info",
    "flwr.proto.control_pb2:StartRunResponse": "run_id",
    "flwr.proto.message_pb2:Context": "run_id node_id",
    "flwr.proto.message_pb2:ObjectTree": "object_id",
    "flwr.proto.run_pb2:Run": "run_id",
    "flwr.proto.runtime_pb2:AcquireTaskResponse": "task token",
    "flwr.proto.runtime_pb2:PullAppMessagesResponse": "message_object_trees",
    "flwr.proto.runtime_pb2:PullTaskInputResponse": "context run task_id",
    "flwr.proto.runtime_pb2:SendTaskHeartbeatResponse": "success",
}
OTHERS = {  # values and plain classes, which the tests below look into
    "flwr.common.constant:ErrorCode",
    "flwr.common.constant:TIMESTAMP_HEADER",
    "flwr.supercore.constant:FLEET_HTTP_PUBLIC_KEY_HEADER",
    "flwr.supercore.constant:FLEET_HTTP_SIGNATURE_HEADER",
    "flwr.supercore.protobuf.client:ProtobufCall",
    "flwr.supercore.protobuf.client:ProtobufClientInterceptor",
    "flwr.supercore.run:RunNotRunningException",
    "flwr.supercore.task_identity:TaskIdentity",
}


def found(name: str) -> Any:
    module, _, path = name.partition(":")
    first, *_ = path.split(".")
    if not hasattr(import_module(module), first):
        import_module(f"{module}.{first}")
    return attrgetter(path)(import_module(module))


def imported(tree: ast.AST) -> Iterator[str]:
    """`module:name` for each name of flwr's, `module:` for a module itself, from which anything could be taken."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            yield from (f"{node.module}:{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (f"{alias.name}:" for alias in node.names if alias.name.split(".")[0] == "flwr")


def is_documented(name: str) -> bool:
    module, _, item = name.partition(":")
    return module in DOCUMENTED and item in import_module(module).__all__


def parsed(folder: Path) -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for file in folder.rglob("*.py")}


def test_all_that_is_used_is_here_and_all_that_is_here_is_used() -> None:
    names = (name.partition(":") for name in (*PARAMETERS, *FIELDS, *OTHERS))
    known = {f"{module}:{path.split('.')[0]}" for module, _, path in names}
    there = {name for tree in parsed(PRIVATE).values() for name in imported(tree)}
    assert {name for name in there if not is_documented(name)} == known


def test_what_is_not_documented_is_imported_in_one_place() -> None:
    """And what is, in the folder above it."""
    files = {file: {*imported(tree)} for file, tree in parsed(PACKAGE).items() if PRIVATE not in file.parents}
    strays = {file: {name for name in names if not is_documented(name)} for file, names in files.items()}
    assert not {file: names for file, names in strays.items() if names}
    assert {file.parent for file, names in files.items() if names} == {PRIVATE.parent}


@pytest.mark.parametrize(
    ("text", "stray"),
    [
        ("import flwr", "flwr:"),
        ("import flwr.supercore.run as run", "flwr.supercore.run:"),
        ("from flwr import supercore", "flwr:supercore"),
        ("from flwr.app import message", "flwr.app:message"),
        ("import flwr.simulation", "flwr.simulation:"),
        ("def later():\n    from flwr.supercore.run import Run", "flwr.supercore.run:Run"),
    ],
)
def test_strays_are_seen(text: str, stray: str) -> None:
    assert [name for name in imported(ast.parse(text)) if not is_documented(name)] == [stray]


@pytest.mark.parametrize("file", sorted(PRIVATE.glob("[!_]*.py")), ids=attrgetter("stem"))
def test_nothing_is_kept_there_that_nobody_asks_for(file: Path) -> None:
    tree = ast.parse(file.read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    offered = {alias.asname or alias.name for node in imports for alias in node.names}
    asked = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in (node for other in parsed(PRIVATE.parent).values() for node in ast.walk(other)):
        if isinstance(node, ast.ImportFrom) and node.module == f"private.{file.stem}":
            asked |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == file.stem:
            asked.add(node.attr)
    assert offered <= asked


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    assert [*inspect.signature(found(name)).parameters] == PARAMETERS[name].split()


@pytest.mark.parametrize(("name", "fields"), (FIELDS | GIVEN).items())
def test_messages_on_the_wire(name: str, fields: str) -> None:
    assert {*fields.split()} <= {*found(name).DESCRIPTOR.fields_by_name}


def test_values() -> None:
    assert worker.COMPLETED == SubStatus.COMPLETED
    assert (worker.SERVER_APP, worker.CLIENT_APP) == (TaskType.SERVER_APP, TaskType.CLIENT_APP)
    names = "NODE_UNAVAILABLE MESSAGE_UNAVAILABLE REPLY_MESSAGE_UNAVAILABLE CLIENT_APP_CRASHED"
    more = "CLIENT_APP_RAISED_EXCEPTION LOAD_CLIENT_APP_EXCEPTION"
    codes = [getattr(ErrorCode, name) for name in f"{names} {more}".split()]
    assert len({*codes}) == 6
    assert issubclass(found("flwr.supercore.run:RunNotRunningException"), BaseException)


def test_a_grid_over_a_connection_of_ours() -> None:
    """It makes one when it needs one, unless it has one."""
    connection = object()
    grid = grid_over(connection, 7, "127.0.0.1:1", b"", "token")  # type: ignore[arg-type]
    assert isinstance(grid, HttpGrid)
    assert grid._runtime_client is connection
    assert grid.run.run_id == 7


def test_a_node_that_looks_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its step, and its pauses, from its module's names."""
    source = inspect.getsource(start_client_internal)
    assert source.count("time.sleep(3)") == 1
    assert {*re.findall(r"\btime\.(\w+)", source)} == {"sleep"}
    assert "run_id = _pull_and_store_message(" in source
    for name in ("_pull_and_store_message", "time"):
        monkeypatch.setattr(start_client_internal, name, getattr(start_client_internal, name))  # and back in the end
    look_otherwise(step := lambda: None, pause := lambda seconds: None)
    assert (start_client_internal._pull_and_store_message, start_client_internal.time.sleep) == (step, pause)


def test_a_messages_name() -> None:
    """As it came, it has none, and a reply names what it replies to."""
    act_as(1, 2, 3)
    message = named(Message(RecordDict(), 1, "train.pass"), "its name")
    reply = Message(RecordDict(), reply_to=message)
    assert reply.metadata.reply_to_message_id == "its name"
    assert (message.metadata.run_id, message.metadata.src_node_id) == (2, 3)
    assert Context(1, 2, {}, RecordDict(), {}).node_id == 2


def test_flwr_is_of_the_version_that_all_this_is_of() -> None:
    assert metadata.version("flwr").startswith(f"{MADE_FOR}.")


def test_another_version_is_refused() -> None:
    """When anything of ours is imported that needs it, in a sentence."""
    code = (
        "import importlib.metadata as m; real = m.version; "
        "m.version = lambda name: '1.42.0' if name == 'flwr' else real(name); import fedtailor.flower"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told = "this needs flwr 1.41, and 1.42.0 is installed: pip install 'fedtailor[flower]'"
    assert done.stderr.splitlines()[-1] == f"fedtailor.base.errors.UserError: {told}"
