// CUDA's headers include this header of its compiler. Code for the host needs nothing of it.
#pragma once
