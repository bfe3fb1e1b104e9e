// Elementwise row operations between two products: bias, residual, NoNorm or LayerNorm, ReLU.
// Neighbour: encoder.cc. Pure; a row's result depends only on that row.
#pragma once

#include "engine/encoder/weights.h"

namespace withy::engine {

// y[n] += bias[n]
void AddBias(const float* bias, int n, float* y);
// y[n] = max(0, y + bias)
void AddBiasRelu(const float* bias, int n, float* y);
// y[n] = tanh(y + bias)
void AddBiasTanh(const float* bias, int n, float* y);
// y[n] = norm(y + bias + residual); residual may be null. y must not alias the other arguments.
void AddAndNorm(const float* bias, const float* residual, const NormWeights& norm, int n, float* y);

}  // namespace withy::engine
