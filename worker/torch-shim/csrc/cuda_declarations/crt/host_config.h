// CUDA's headers name this one, which comes with its compiler: what they need of it in a host's translation unit is nothing.
#pragma once
