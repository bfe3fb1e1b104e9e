#include "offline/train/ops.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cmath>
#include <limits>

#include "offline/train/attention.h"
#include "offline/train/kernels.h"

namespace withy::train {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

constexpr int64_t kGrain =
    64;  // rows per task, which share one partial sum of dw for any thread count

bool Fused(const Tensor& x) { return x.device().is_cpu() && x.scalar_type() == torch::kFloat32; }

struct Bf16LinearFunction : torch::autograd::Function<Bf16LinearFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    const Tensor x_low = x.to(torch::kBFloat16);
    const Tensor weight_low = weight.to(torch::kBFloat16);
    context->save_for_backward({x_low, weight_low});
    context->saved_data["weight_trains"] = weight.requires_grad();
    return at::linear(x_low, weight_low).to(torch::kFloat32);
  }

  static tensor_list backward(AutogradContext* context, tensor_list grads) {
    const tensor_list saved = context->get_saved_variables();
    const Tensor dy = grads[0].to(torch::kBFloat16);
    Tensor dweight;
    if (context->saved_data["weight_trains"].toBool())
      dweight = torch::mm(dy.t(), saved[0]).to(torch::kFloat32);
    return {torch::mm(dy, saved[1]).to(torch::kFloat32), dweight};
  }
};

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x_in, const Tensor& weight,
                        double eps) {
    const Tensor x = x_in.contiguous();
    Tensor y = torch::empty_like(x);
    Tensor rstd = torch::empty({x.size(0)}, x.options());
    at::parallel_for(0, x.size(0), kGrain, [&](int64_t begin, int64_t end) {
      kernels::RmsNorm(x.data_ptr<float>(), weight.data_ptr<float>(), static_cast<float>(eps),
                       y.data_ptr<float>(), rstd.data_ptr<float>(), x.size(1), begin, end);
    });
    context->save_for_backward({x, weight, rstd});
    return y;
  }

  static tensor_list backward(AutogradContext* context, tensor_list grads) {
    const tensor_list saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor dy = grads[0].contiguous();
    Tensor dx = torch::empty_like(x);
    const int64_t rows = x.size(0);
    const int64_t blocks = (rows + kGrain - 1) / kGrain;
    Tensor partial = torch::zeros({blocks, x.size(1)}, x.options());
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        kernels::RmsNormBackward(dy.data_ptr<float>(), x.data_ptr<float>(),
                                 saved[1].data_ptr<float>(), saved[2].data_ptr<float>(),
                                 dx.data_ptr<float>(), partial.data_ptr<float>() + b * x.size(1),
                                 x.size(1), b * kGrain, std::min(rows, (b + 1) * kGrain));
      }
    });
    return {dx, partial.sum(0), Tensor()};
  }
};

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x_in) {
    const Tensor x = x_in.contiguous();
    const int64_t width = x.size(1) / 2;
    Tensor y = torch::empty({x.size(0), width}, x.options());
    at::parallel_for(0, x.size(0), kGrain, [&](int64_t begin, int64_t end) {
      kernels::SwiGlu(x.data_ptr<float>(), y.data_ptr<float>(), width, begin, end);
    });
    context->save_for_backward({x});
    return y;
  }

  static tensor_list backward(AutogradContext* context, tensor_list grads) {
    const Tensor x = context->get_saved_variables()[0];
    const Tensor dy = grads[0].contiguous();
    Tensor dx = torch::empty_like(x);
    at::parallel_for(0, x.size(0), kGrain, [&](int64_t begin, int64_t end) {
      kernels::SwiGluBackward(dy.data_ptr<float>(), x.data_ptr<float>(), dx.data_ptr<float>(),
                              x.size(1) / 2, begin, end);
    });
    return {dx};
  }
};

Tensor Turn(const Tensor& x_in, const Tensor& cos, const Tensor& sin, float sign) {
  const Tensor x = x_in.contiguous();
  Tensor y = torch::empty_like(x);
  at::parallel_for(0, x.size(0) * x.size(1), kGrain, [&](int64_t begin, int64_t end) {
    kernels::Rope(x.data_ptr<float>(), cos.data_ptr<float>(), sin.data_ptr<float>(), sign,
                  y.data_ptr<float>(), x.size(1), x.size(2), x.size(3), begin, end);
  });
  return y;
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cos,
                        const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return Turn(x, cos, sin, 1.0f);
  }

  static tensor_list backward(AutogradContext* context, tensor_list grads) {
    const tensor_list saved = context->get_saved_variables();
    return {Turn(grads[0], saved[0], saved[1], -1.0f), Tensor(), Tensor()};
  }
};

// One sequence of a batch for the kernels, which need contiguous heads that are adjacent.
kernels::AttentionShape ShapeOf(const Tensor& q, const Tensor& k, const Tensor& v) {
  return {.length = q.size(1),
          .heads = q.size(2),
          .kv_heads = k.size(2),
          .head_dim = q.size(3),
          .q_stride = q.stride(1),
          .k_stride = k.stride(1),
          .v_stride = v.stride(1)};
}

Tensor HeadsTogether(const Tensor& x) {
  return x.stride(3) == 1 && x.stride(2) == x.size(3) ? x : x.contiguous();
}

// Calls f(sequence, KV head) for all pairs.
template <typename F>
void ForEachGroup(int64_t batch, int64_t kv_heads, F f) {
  at::parallel_for(0, batch * kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / kv_heads, i % kv_heads);
  });
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q_in, const Tensor& k_in,
                        const Tensor& v_in) {
    const Tensor q = HeadsTogether(q_in);
    const Tensor k = HeadsTogether(k_in);
    const Tensor v = HeadsTogether(v_in);
    const kernels::AttentionShape shape = ShapeOf(q, k, v);
    Tensor out = torch::empty(q.sizes(), q.options());
    Tensor log_sums = torch::empty({q.size(0), shape.heads, shape.length}, q.options());
    ForEachGroup(q.size(0), shape.kv_heads, [&](int64_t b, int64_t kv_head) {
      kernels::CausalAttention(
          shape, q.data_ptr<float>() + b * q.stride(0), k.data_ptr<float>() + b * k.stride(0),
          v.data_ptr<float>() + b * v.stride(0), kv_head, out.data_ptr<float>() + b * out.stride(0),
          log_sums.data_ptr<float>() + b * log_sums.stride(0));
    });
    context->save_for_backward({q, k, v, out, log_sums});
    return out;
  }

  static tensor_list backward(AutogradContext* context, tensor_list grads) {
    const tensor_list saved = context->get_saved_variables();
    const Tensor& q = saved[0];
    const Tensor& k = saved[1];
    const Tensor& v = saved[2];
    const Tensor& out = saved[3];
    const Tensor& log_sums = saved[4];
    const Tensor dout = grads[0].contiguous();
    const kernels::AttentionShape shape = ShapeOf(q, k, v);
    Tensor dq = torch::empty(q.sizes(), q.options());
    Tensor dk = torch::empty(k.sizes(), k.options());
    Tensor dv = torch::empty(v.sizes(), v.options());
    ForEachGroup(q.size(0), shape.kv_heads, [&](int64_t b, int64_t kv_head) {
      kernels::CausalAttentionBackward(
          shape, q.data_ptr<float>() + b * q.stride(0), k.data_ptr<float>() + b * k.stride(0),
          v.data_ptr<float>() + b * v.stride(0), kv_head, out.data_ptr<float>() + b * out.stride(0),
          log_sums.data_ptr<float>() + b * log_sums.stride(0),
          dout.data_ptr<float>() + b * dout.stride(0), dq.data_ptr<float>() + b * dq.stride(0),
          dk.data_ptr<float>() + b * dk.stride(0), dv.data_ptr<float>() + b * dv.stride(0));
    });
    return {dq, dk, dv};
  }
};

}  // namespace

Products FastestProducts(torch::Device device) {
  if (device.is_cuda()) return Products::kBf16;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return Products::kBf16;
#endif
  return Products::kF32;
}

Tensor Linear(const Tensor& x, const Tensor& weight, Products products) {
  if (products == Products::kBf16) return Bf16LinearFunction::apply(x, weight);
  return torch::linear(x, weight);
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  if (Fused(x)) return RmsNormFunction::apply(x, weight, eps);
  return x * torch::rsqrt(x.square().mean(-1, true) + eps) * weight;
}

Tensor SwiGlu(const Tensor& gate_up) {
  if (Fused(gate_up)) return SwiGluFunction::apply(gate_up);
  const std::vector<Tensor> halves = gate_up.chunk(2, -1);
  return torch::silu(halves[0]) * halves[1];
}

Tensor Rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  if (Fused(x)) return RopeFunction::apply(x, cos, sin);
  const Tensor pairs = x.unflatten(-1, {x.size(-1) / 2, 2});
  const Tensor a = pairs.select(-1, 0);
  const Tensor b = pairs.select(-1, 1);
  const Tensor c = cos.unsqueeze(1);
  const Tensor s = sin.unsqueeze(1);
  return torch::stack({a * c - b * s, a * s + b * c}, -1).flatten(-2);
}

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v) {
  if (Fused(q) && kernels::FitsAttention(q.size(3))) return AttentionFunction::apply(q, k, v);
  const int64_t share = q.size(2) / k.size(2);
  const Tensor queries = q.transpose(1, 2);
  const Tensor keys = k.transpose(1, 2).repeat_interleave(share, 1);
  const Tensor values = v.transpose(1, 2).repeat_interleave(share, 1);
#if TORCH_VERSION_MAJOR >= 2
  return at::scaled_dot_product_attention(queries, keys, values, {}, 0.0, true).transpose(1, 2);
#else
  const int64_t length = q.size(1);
  const Tensor hidden = torch::ones({length, length}, q.options().dtype(torch::kBool)).triu(1);
  const Tensor scores =
      torch::matmul(queries, keys.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  const Tensor weights =
      torch::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
  return torch::matmul(weights, values).transpose(1, 2);
#endif
}

}  // namespace withy::train
