// What reductions give by definition, written without the engine's kernels.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "orca/comm/types.h"
#include "testing/ranks.h"

namespace orca::testing {

using Buffer = std::vector<std::byte>;

/// Test data repeats after so many elements: a prime, so that no piece, line or part begins with a
/// tile.
inline constexpr std::size_t kTile = 251;

/// What a rank contributes: kTile elements, always the same for the same arguments. Integers that
/// are averaged are small, so that partial sums do not overflow.
Buffer InputTile(comm::DType dtype, comm::ReduceOp op, int rank);
/// The factor of a rank for kPreMulSum.
double FactorOf(int rank);
/// The reduction of all ranks' tiles: the ranks of a host in their order, then the hosts in theirs.
Buffer ReducedTile(comm::DType dtype, comm::ReduceOp op,
                   const std::vector<std::vector<int>>& hosts);
/// The ranks by host, as `layout` places them.
std::vector<std::vector<int>> HostsOf(const Layout& layout, int world);

/// Fills `data` with elements first, first + 1, ... of the endless repetition of `tile`.
void FillFrom(const Buffer& tile, std::size_t first, comm::DType dtype, std::span<std::byte> data);
/// Whether `data` holds just that; says where the first difference is.
bool Holds(const Buffer& tile, std::size_t first, comm::DType dtype,
           std::span<const std::byte> data);

/// The value of one element, for tolerances and messages.
double ValueOf(comm::DType dtype, const std::byte* element);

}  // namespace orca::testing
