// libtorch creates devices (ProcessGroupGloo::createDeviceFor...); the shim only passes shared pointers on.
#pragma once
namespace gloo {
namespace transport {
class Device;
class UnboundBuffer;
} // namespace transport
} // namespace gloo
