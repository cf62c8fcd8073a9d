"""The fabric's gRPC services and their messages, as tables; protobuf makes the message classes of them, and reflection
hands them out.

A message is written as its fields stand in a .proto file; names are those of its own package unless they begin with a
dot.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory

_EMPTY: Final = ".google.protobuf.Empty"


class _File(NamedTuple):
    package: str
    messages: dict[str, str]
    services: dict[str, dict[str, tuple[str, str]]]
    """Per service and rpc, what it takes and what it gives."""


_REFLECTION_MESSAGES: Final = {
    "ServerReflectionRequest": "string host = 1; string file_by_filename = 3; string file_containing_symbol = 4;"
    "string all_extension_numbers_of_type = 6; string list_services = 7",
    "FileDescriptorResponse": "repeated bytes file_descriptor_proto = 1",
    "ServiceResponse": "string name = 1",
    "ListServiceResponse": "repeated ServiceResponse service = 1",
    "ErrorResponse": "int32 error_code = 1; string error_message = 2",
    "ServerReflectionResponse": "string valid_host = 1; ServerReflectionRequest original_request = 2;"
    "FileDescriptorResponse file_descriptor_response = 4; ListServiceResponse list_services_response = 6;"
    "ErrorResponse error_response = 7",
}
_REFLECTION_SERVICES: Final = {
    "ServerReflection": {"ServerReflectionInfo": ("stream ServerReflectionRequest", "stream ServerReflectionResponse")}
}
_FILES: Final = {
    "fabric.proto": _File(
        "perper",
        {
            "ExecutionsRequest": "string agent = 1; string instance = 2; string delegate = 3; bool localToData = 4",
            "ExecutionsResponse": "string instance = 2; string delegate = 3; string execution = 4; bool cancelled = 5;"
            "bool startOfStream = 10",
            "AllExecutionsResponse": "repeated ExecutionsResponse executions = 1",
            "ReservedExecutionsRequest": "uint64 reserveNext = 1; string workGroup = 5; ExecutionsRequest filter = 10",
            "ReserveExecutionRequest": "string execution = 4; string workGroup = 5",
            "ExecutionFinishedRequest": "string execution = 4",
            "StreamItemsRequest": "string stream = 1; int64 startKey = 2; bool localToData = 3; int64 stride = 4",
            "StreamItemsResponse": "int64 key = 1",
            "ListenerAttachedRequest": "string stream = 1",
        },
        {
            "Fabric": {
                "Executions": ("ExecutionsRequest", "stream ExecutionsResponse"),
                "AllExecutions": ("ExecutionsRequest", "AllExecutionsResponse"),
                "ExecutionFinished": ("ExecutionFinishedRequest", _EMPTY),
                "ReserveExecution": ("ReserveExecutionRequest", f"stream {_EMPTY}"),
                "ReservedExecutions": ("stream ReservedExecutionsRequest", "stream ExecutionsResponse"),
                "StreamItems": ("StreamItemsRequest", "stream StreamItemsResponse"),
                "ListenerAttached": ("ListenerAttachedRequest", _EMPTY),
            }
        },
    ),
    "externalscaler.proto": _File(
        "externalscaler",
        {
            "ScaledObjectRef": "string name = 1; string namespace = 2; map<string,string> scalerMetadata = 3",
            "IsActiveResponse": "bool result = 1",
            "MetricSpec": "string metricName = 1; int64 targetSize = 2",
            "GetMetricSpecResponse": "repeated MetricSpec metricSpecs = 1",
            "GetMetricsRequest": "ScaledObjectRef scaledObjectRef = 1; string metricName = 2",
            "MetricValue": "string metricName = 1; int64 metricValue = 2",
            "GetMetricsResponse": "repeated MetricValue metricValues = 1",
        },
        {
            "ExternalScaler": {
                "IsActive": ("ScaledObjectRef", "IsActiveResponse"),
                "StreamIsActive": ("ScaledObjectRef", "stream IsActiveResponse"),
                "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse"),
                "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse"),
            }
        },
    ),
    "grpc/health/v1/health.proto": _File(
        "grpc.health.v1",
        {"HealthCheckRequest": "string service = 1", "HealthCheckResponse": "int32 status = 1"},
        {
            "Health": {
                "Check": ("HealthCheckRequest", "HealthCheckResponse"),
                "Watch": ("HealthCheckRequest", "stream HealthCheckResponse"),
            }
        },
    ),
    "grpc/reflection/v1/reflection.proto": _File("grpc.reflection.v1", _REFLECTION_MESSAGES, _REFLECTION_SERVICES),
    "grpc/reflection/v1alpha/reflection.proto": _File(
        "grpc.reflection.v1alpha", _REFLECTION_MESSAGES, _REFLECTION_SERVICES
    ),
}


class Method(NamedTuple):
    """One rpc, with the classes of its messages."""

    name: str
    request: Any
    response: Any
    client_streams: bool
    server_streams: bool


def _add_field(message: Any, package: str, text: str) -> None:
    *label, kind, name, _, number = text.split()
    repeated = bool(label) or kind.startswith("map<")
    field = message.field.add(name=name, json_name=name, number=int(number), label=3 if repeated else 1)
    if kind.startswith("map<"):  # on the wire, repeated entries of a nested type
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry", options={"map_entry": True})
        for at, (part, part_kind) in enumerate(zip(("key", "value"), kind[4:-1].split(","), strict=True), 1):
            _add_field(entry, package, f"{part_kind} {part} = {at}")
        kind = f"{message.name}.{entry.name}"
    scalar = descriptor_pb2.FieldDescriptorProto.Type.DESCRIPTOR.values_by_name.get(f"TYPE_{kind.upper()}")
    if scalar is not None:
        field.type = scalar.number
    else:
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"


def _described(name: str, file: _File) -> bytes:
    described = descriptor_pb2.FileDescriptorProto(name=name, package=file.package, syntax="proto3")
    for message, fields in file.messages.items():
        made = described.message_type.add(name=message)
        for text in fields.split(";"):
            _add_field(made, file.package, text)
    for service, methods in file.services.items():
        rpcs = described.service.add(name=service).method
        for method, kinds in methods.items():
            takes, gives = (kind.removeprefix("stream ") for kind in kinds)
            if _EMPTY in (takes, gives) and not described.dependency:
                described.dependency.append(empty_pb2.DESCRIPTOR.name)
            rpcs.add(
                name=method,
                input_type=takes if takes == _EMPTY else f".{file.package}.{takes}",
                output_type=gives if gives == _EMPTY else f".{file.package}.{gives}",
                client_streaming=kinds[0] != takes,
                server_streaming=kinds[1] != gives,
            )
    data: bytes = described.SerializeToString()
    return data


# A pool of our own: other packages in the process may bring files of the same names.
_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(empty_pb2.DESCRIPTOR.serialized_pb)
for _name, _file in _FILES.items():
    _POOL.AddSerializedFile(_described(_name, _file))

MESSAGES: Final[dict[str, Any]] = {
    name: message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))
    for name in (_EMPTY[1:], *(f"{file.package}.{name}" for file in _FILES.values() for name in file.messages))
}
SERVICES: Final = [f"{file.package}.{service}" for file in _FILES.values() for service in file.services]
METHODS: Final = {
    f"/{service}/{method.name}": Method(
        method.name,
        MESSAGES[method.input_type.full_name],
        MESSAGES[method.output_type.full_name],
        method.client_streaming,
        method.server_streaming,
    )
    for service in SERVICES
    for method in _POOL.FindServiceByName(service).methods
}


def file_named(name: str) -> list[bytes]:
    """The descriptor of a file; nothing when there is no such file."""
    try:
        return [_POOL.FindFileByName(name).serialized_pb]
    except KeyError:
        return []


def files_of_symbol(symbol: str) -> list[bytes]:
    """The descriptor of the file that declares a service, method or message, and of those it needs."""
    service, _, method = symbol.rpartition(".")
    try:
        file = _POOL.FindFileContainingSymbol(service if f"/{service}/{method}" in METHODS else symbol)
    except KeyError:
        return []
    return [file.serialized_pb, *(needed.serialized_pb for needed in file.dependencies)]
