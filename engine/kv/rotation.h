// The rotation of K and V: an orthonormal Walsh-Hadamard transform of every head. It spreads
// channels with large numbers over all dimensions, so that one scale for a token and head suffices.
// K is rotated after RoPE; queries are rotated too, so q.k stays as it is. The output of attention
// over rotated V is rotated back. Neighbours: cpu/rotate-inl.h has the kernel.
#pragma once

namespace withy::engine {

// Dimensions of a head that are rotated together: the largest power of two that divides head_dim.
constexpr int RotationBlock(int head_dim) { return head_dim & -head_dim; }

// Rotates x[head_dim] in place, each block of RotationBlock(head_dim) dimensions by itself. It is
// its own inverse, up to rounding.
void RotateHead(int head_dim, float* x);

}  // namespace withy::engine
