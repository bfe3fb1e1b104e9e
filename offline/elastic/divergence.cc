// The loss of learning from a teacher, and its gradient, without the logits of the whole vocabulary
// in memory as f32: they take most of a small model's time otherwise.
#include <algorithm>
#include <vector>

#include "offline/elastic/text/batches.h"

namespace withy::elastic {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

constexpr int64_t kChunk = 4096;  // tokens of the vocabulary that are computed at once
constexpr double kLeast = 1e-6;   // probability of all tokens that the teacher does not name

// What a row's loss follows from: l, logits of the vocabulary; q = softmax(l); p, the teacher's
// probabilities of the tokens it names; r, of all others; Q, the sum of q over the named ones.
//   loss = sum p (log p - log q) + r (log r - log(1 - Q))
//   d loss / d l = q - p for named tokens, q (1 - r / (1 - Q)) for the others
struct DivergenceFunction : torch::autograd::Function<DivergenceFunction> {
  // hidden [rows, d_model], output [vocab, d_model], ids and logs [rows, kTaught], weight [rows];
  // returns the weighted mean.
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& output,
                        const Tensor& ids, const Tensor& logs, const Tensor& weight) {
    const Tensor x = hidden.to(output.scalar_type());
    const std::vector<Tensor> parts = output.split(kChunk);
    std::vector<Tensor> logits;
    Tensor log_sum;
    Tensor named = torch::empty_like(logs);
    for (size_t c = 0; c < parts.size(); ++c) {
      logits.push_back(at::linear(x, parts[c]));
      const Tensor part = logits.back().to(torch::kFloat32);
      const Tensor sum = part.logsumexp(1, /*keepdim=*/true);
      log_sum = log_sum.defined() ? torch::logaddexp(log_sum, sum) : sum;
      const auto [inside, at] = Inside(ids, static_cast<int64_t>(c), part.size(1));
      named = torch::where(inside, part.gather(1, at), named);
    }
    const Tensor named_logs = named - log_sum;
    const Tensor shares = logs.exp();
    const Tensor q = named_logs.exp();
    const Tensor others = (1 - shares.sum(1, true)).clamp_min(kLeast);
    const Tensor view_others = (1 - q.sum(1, true)).clamp_min(kLeast);
    const Tensor loss =
        (shares * (logs - named_logs)).sum(1, true) + others * (others.log() - view_others.log());
    const Tensor part_of_mean = (weight / weight.sum()).unsqueeze(1);
    if (hidden.requires_grad()) {
      const Tensor scale = (1 - others / view_others) * part_of_mean;
      const Tensor of_named = (q - shares) * part_of_mean;
      Tensor gradient = torch::zeros_like(hidden);
      for (size_t c = 0; c < parts.size(); ++c) {
        Tensor part = (logits[c].to(torch::kFloat32) - log_sum).exp_().mul_(scale);
        const auto [inside, at] = Inside(ids, static_cast<int64_t>(c), part.size(1));
        part.scatter_add_(1, at, (of_named - part.gather(1, at)).mul_(inside));
        gradient += torch::mm(part.to(output.scalar_type()), parts[c]).to(torch::kFloat32);
      }
      context->save_for_backward({gradient});
    }
    return (loss * part_of_mean).sum();
  }

  static tensor_list backward(AutogradContext* context, tensor_list grads) {
    return {context->get_saved_variables()[0] * grads[0], Tensor(), Tensor(), Tensor(), Tensor()};
  }

 private:
  // Which ids lie in chunk `c` of `size` tokens, and their places in it; others have any place.
  static std::pair<Tensor, Tensor> Inside(const Tensor& ids, int64_t c, int64_t size) {
    const Tensor at = ids - c * kChunk;
    return {(at >= 0).logical_and(at < size), at.clamp(0, size - 1)};
  }
};

}  // namespace

Tensor Divergence(const Network& network, const Batch& batch, const View& view) {
  const torch::Device device = network.device();
  const Tensor asked = batch.weight.nonzero().squeeze(1);
  const Tensor hidden =
      network.Hidden(batch.tokens.to(device), view).index_select(0, asked.to(device));
  return DivergenceFunction::apply(
      hidden, network.output(), batch.taught_ids.index_select(0, asked).to(device, torch::kInt64),
      batch.taught_logs.index_select(0, asked).to(device, torch::kFloat32),
      batch.weight.index_select(0, asked).to(device));
}

}  // namespace withy::elastic
