// libtorch's ProcessGroupGloo.hpp includes this Gloo header, which the wheel does not ship; nothing of it is used by name.
#pragma once
