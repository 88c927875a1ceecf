// torch's convolutions and pooling by the engine, where it is faster.
#pragma once

namespace orca::plugin {

/// From now on this process computes them so; false: no longer. Float32 on CPUs alone, and what the
/// engine is not made for goes the way of torch. Call it before threads use torch.
void UseKernels(bool use);

}  // namespace orca::plugin
