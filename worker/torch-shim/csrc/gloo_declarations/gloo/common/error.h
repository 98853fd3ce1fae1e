// libtorch's ProcessGroupGloo.hpp includes this Gloo header, which the wheel lacks. Nothing of it is used.
#pragma once
