// Devices are made by libtorch (ProcessGroupGloo::createDeviceFor...) and only passed on behind shared pointers.
#pragma once
namespace gloo {
namespace transport {
class Device;
class UnboundBuffer;
} // namespace transport
} // namespace gloo
