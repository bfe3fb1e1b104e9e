// The engine's one entry: Model::Forward(rows). Prefill, decode, tree verification, chunk recompute
// and many contexts at once are the same call with different rows. Neighbours: engine/weights packs
// and maps the file, engine/cpu computes, engine/kv lays out KV blocks; engine/model/bundle.h
// adds the tokenizer and chat template of the same file. Workers own KV blocks and scheduling;
// nothing here allocates KV.
//
//   ModelOptions options;
//   options.threads = 2;
//   WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Open("pocket.gguf", options));
//   ScratchKv kv(model->info(), 16);  // blocks in ordinary memory
//   ContextView view = kv.View();
//   Row row{.token = 1, .position = 0, .slot = 0, .want_logits = true};
//   std::vector<float> logits(model->info().vocab_size);
//   WITHY_RETURN_IF_ERROR(model->Forward({.rows = {&row, 1}, .contexts = {&view, 1}},
//   logits.data()));
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/layer_set.h"
#include "engine/kv/memory.h"
#include "engine/model/kernel_observer.h"
#include "engine/weights/levels.h"
#include "engine/weights/weight_stream.h"

namespace withy::engine {

class HeadStates;
namespace cuda {
class Gpu;
}

// One token to compute. A slot is a token's place in its context's KV: slot s lies in chunk s /
// info().kv.chunk_tokens. Outside token trees slot == position.
struct Row {
  int32_t token = 0;     // [0, vocab_size)
  int32_t position = 0;  // [0, context_length): RoPE angle and place in the causal order
  int32_t slot = 0;      // where this row's K and V are written
  int32_t context = 0;   // index into Batch::contexts
  int32_t level = -1;    // index into info().levels; -1 is the full model
  // Lowest level at which any token that this row sees, itself included, was computed; -1: `level`.
  // Where levels cut KV heads, the row attends only with the heads that this level has.
  int32_t context_level = -1;
  bool want_logits = false;  // adds one row to the logits output, in row order
  // Tree rows: slots of the row's ancestors, root first (ascending positions), without the row
  // itself. A row sees slots [0, position - ancestor_slots.size()), then these, then itself.
  // Empty for plain rows, which see every smaller slot.
  std::span<const int32_t> ancestor_slots = {};
  // Optional, [chunks]: where the attention that this row gives to chunks is added instead of
  // ContextView::density: for rows that may turn out not to be of the context.
  std::span<float> density = {};
  // Optional, [Batch::feature_layers, d_model]: where what enters these layers is written, for a
  // draft head (engine/head/).
  std::span<float> features = {};
};

// The caller's KV blocks of one context. Slots below `committed_tokens` are read-only: Begin
// refuses a row whose slot lies there.
struct ContextView {
  KvMemory memory = {};
  // [chunk * layers + layer]. Blocks may differ in format (engine/kv/block.h), but tokens are
  // written to 8-bit blocks, of info().kv.block_bytes. (16-bit ones are written, too, for
  // comparisons.) Blocks of info().kv.windowed need not exist where no row reads them: one that is
  // before the chunk, or at least info().kv.window_reach behind its end. Begin refuses others.
  std::span<const KvBlockName> blocks = {};
  int32_t committed_tokens = 0;
  // Optional, [chunks]: the attention that chunks get is added here (LLMS eq. 1): for each chunk,
  // the sum of the probabilities that rows give to its keys, over all query heads and all layers
  // but the last, in which only rows that want logits attend. Rows with ancestors count only where
  // they have a Row::density.
  std::span<float> density = {};
  // Optional: number of leading layers whose blocks are in place; another thread counts it up while
  // KV is read from disk. A pass pauses before it touches a later layer's blocks.
  const std::atomic<int32_t>* layers_ready = nullptr;
  // Optional, [chunks]: a number of NewKvNumber() that is new whenever anybody but a pass of this
  // model wrote a chunk's blocks, so that an executor may keep copies of them. Chunks that are
  // still being read count as written, too.
  std::span<const uint64_t> chunk_versions = {};
  // Of a draft head: the hidden states that the rows of this context go on from. Null: of a model.
  HeadStates* head = nullptr;
};

// Rows of one context that see each other must come in ascending position order. The memory behind
// the spans must stay valid until Forward returns or the Pass is destroyed.
struct Batch {
  std::span<const Row> rows = {};
  std::span<const ContextView> contexts = {};
  // Rows that want logits give what the output head would multiply instead, the last layer's output
  // after the final norm: Begin's `logits` is then [rows with want_logits, d_model].
  bool hidden = false;
  // Layers whose input rows with Row::features get: the residual stream that enters the layer, [1,
  // layers that have K and V of their own). Needs Model::gives_features().
  std::span<const int32_t> feature_layers = {};
  PassTag tag = {};  // for ModelOptions::kernel_observer
  // Optional: called on the caller's thread, before the pass waits for streamed weights; the cores
  // are free until `arrived` becomes true. Other passes may be run in it with `arrived` as their
  // `stop`; they must need no streamed weights of layers. Once it returns, the pass waits.
  std::function<void(const std::atomic<bool>& arrived)> meanwhile = {};
  // Optional: called after each `meanwhile` once the pass has waited, before it computes or pauses.
  std::function<void()> resumed = {};
};

// Shape of the KV blocks that Forward writes, at 8 bits. It reads those of other formats, too.
// engine/kv/block.h defines the bytes.
struct KvInfo {
  int32_t chunk_tokens = 16;  // tokens per chunk
  int32_t layers = 0;         // blocks per chunk
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  size_t block_bytes = 0;  // of one layer of one chunk; a multiple of 64
  // Layers whose sliding window hides blocks: a row reads none of a chunk that ends at least
  // window_reach tokens before its position. At least one layer is not among them. 0: none.
  KvLayerSet windowed = {};
  int32_t window_reach = 0;
};

// Cost of one level. A plain model has a single level, the full one.
struct LevelInfo {
  int32_t percent = 100;        // share of the layers' parameters
  int64_t weight_bytes = 0;     // read per token: the layers' prefixes and the output head
  int64_t flops_per_token = 0;  // 2 * multiply-adds of the matrices, attention excluded
};

struct ModelInfo {
  std::string name;          // general.name, or the file's stem; UTF-8
  std::string architecture;  // "llama", "qwen2", "qwen3"
  // 32 hex digits. Changes when weights, shape or tokenizer change, not with restarts or the path.
  std::string id;
  // Type of most weight bytes: "Q8_0", "Q4_0", "Q4_1", "F16", "BF16" or "F32".
  std::string quantisation;
  int32_t layers = 0;
  int32_t d_model = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t d_ff = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // tokens; every position is below it
  int64_t parameters = 0;      // of the full model, without the levels' LoRA
  int64_t weight_bytes = 0;    // all packed tensors
  // Changes when KV of before may have been computed with damaged weights (PackedTrailer).
  uint32_t kv_epoch = 0;
  // Names how KV of this model differs between two openings of the same file; empty: as if nothing
  // had been chosen. KV of another variant must not be read.
  std::string kv_variant = {};
  KvInfo kv;
  std::vector<LevelInfo> levels;  // ascending; back() is the full model
};

// Reports progress while a GGUF is packed: the share done, in [0, 1], and a description of the
// current step. Called from any thread, one call at a time.
using ProgressFn = std::function<void(double done, std::string_view what)>;

// What tests and benchmarks look into or compare with; no process sets any of it.
struct ModelHooks {
  // Receives the residual stream after each layer, [rows, d_model], rows in batch order. Called on
  // a compute thread, one call at a time. The last layer, and layers that share K and V of earlier
  // ones, leave out rows that want no logits. Of copies of the stream it is the first, after the
  // last layer what they are merged to. Only for batches of one level with at most max_piece_rows
  // rows.
  std::function<void(int32_t layer, std::span<const float> hidden)> layer_tap = {};
  // No part of a layer stays in memory, and the weight budget is buffers for whole layers.
  bool stream_whole_layers = false;
  // Where /proc and /sys are, which say how much memory there is; empty: the system's.
  std::string memory_root = {};
};

struct ModelOptions {
  // What computes: "" or "cpu": the processor; "cuda": the first GPU, "cuda:N": GPU number N;
  // "auto": the first GPU if there is one that passes its self-check, else the processor.
  // "cuda-on-cpu" runs the GPU's kernels on the processor, in tests that link it
  // (cuda/on_cpu/gpu_on_cpu.h).
  std::string device;
  // Opens GPU number N; empty: cuda::OpenCudaGpu. For tests.
  std::function<absl::StatusOr<std::unique_ptr<cuda::Gpu>>(int32_t)> open_gpu;
  // Told in one line why "auto" computes on the processor, or which GPU it takes.
  std::function<void(std::string_view)> on_device;
  // Rows from which a GPU multiplies quantised weights by its matrix units; 0: what is measured
  // when the model is opened. Results do not depend on it.
  int32_t matrix_unit_rows = 0;
  // A GPU multiplies the rows of long prompts as F16 matrices by cuBLAS where that is found, and
  // then has another target(); true: every row is computed exactly, whatever is beside it.
  bool exact_prefill = false;
  // Rows of a prompt in a pass from which cuBLAS is used; 0: what is measured when the model is
  // opened, at least 128.
  int32_t dense_rows = 0;
  int32_t threads = 0;  // 0: one per core
  // Kernel target: "avx512vnni", "avx2", "neon-i8mm", "neon-dotprod" or "portable"; "" picks the
  // best one that this CPU supports.
  std::string target;
  // Directory for packed files made from a GGUF; "" is $XDG_CACHE_HOME/withy, else ~/.cache/withy,
  // else the GGUF's own directory.
  std::string cache_dir;
  // kMapped: weights are read from the mapped packed file. kCopied: they are copied into pages of
  // 2 MiB (base/huge_memory.h) and verified on the way. kAuto: copied if there is room for twice
  // their bytes and they are large enough to gain by it.
  enum class WeightPlace : uint8_t { kAuto, kMapped, kCopied };
  WeightPlace weight_place = WeightPlace::kAuto;
  // Memory that the weights may take; 0: no limit, and weight_place decides. If they take more, a
  // part of each layer is read from the packed file for every pass (model/plan_weights.h).
  uint64_t weight_budget_bytes = 0;
  // Tokens of the longest context that is to be computed: LongRoPE has other frequencies for long
  // ones. 0: the model's context_length.
  int32_t window = 0;
  WeightStreamOptions stream = {};
  // Rows computed at once; bounds activation memory. 0: what the device does best with. Exact
  // results do not depend on it.
  int32_t max_piece_rows = 0;
  ProgressFn progress;
  // Told why a packed file is damaged that is packed again from its GGUF.
  std::function<void(const absl::Status& damage)> on_damage;
  // Told of weights that Model::Rest gave back and that cannot be read anew, as Begin reports it,
  // too: the model must be opened again.
  std::function<void(const absl::Status&)> on_lost;
  // Replaces the file's levels below the full one, without LoRA. Ascending and nested: no extent
  // may be larger than the next level's.
  std::vector<LevelSpec> levels;
  // Told what each thread does of each operation; null: nobody is. Outlives the model. Results do
  // not depend on it.
  KernelObserver* kernel_observer = nullptr;
  ModelHooks hooks = {};
};

class GgufFile;

// The computation of one batch. It can be paused and resumed, and other passes can run in between,
// so that an urgent batch need not wait for a long one. Destroying an unfinished pass leaves the KV
// slots of its rows undefined, as cancelling does.
class Pass {
 public:
  virtual ~Pass() = default;
  // Starts or resumes the pass. Returns true once every row is computed. Returns false if it paused
  // first: because `*stop` became true, or after the first layer at which the share of the work
  // done is at least `until` (0 .. 1), or because it needs blocks that are not in place
  // (ContextView::layers_ready), or because of an error: see status(). Waits for streamed weights
  // until they come or `*stop` becomes true. `stop` is polled between work items; one matrix
  // product over all rows is one item. The next Run continues where this one paused.
  virtual bool Run(const std::atomic<bool>* stop = nullptr, double until = 1) = 0;
  // Whether a paused pass needs blocks that are still not in place: the next Run does nothing.
  virtual bool WaitsForKv() const = 0;
  // Not OK after a Run that failed: streamed weights cannot be read (errors as
  // WeightStream::Await), or the device failed (INTERNAL, RESOURCE_EXHAUSTED). The next Run tries
  // again.
  virtual absl::Status status() const { return absl::OkStatus(); }
  // Share of the work that is done, 0 .. 1, while the pass is paused.
  virtual double Done() const = 0;
};

// What computes rows: a model, or a draft head (engine/head/draft_head.h).
class RowModel {
 public:
  virtual ~RowModel() = default;
  virtual const ModelInfo& info() const = 0;
  // As Model::Begin.
  virtual absl::StatusOr<std::unique_ptr<Pass>> Begin(const Batch& batch, float* logits) = 0;
};

// An open model and its compute threads. Begin, Forward and the passes may be used by one thread at
// a time, info() by any thread.
class Model : public RowModel {
 public:
  // Opens a packed file, or a GGUF. A GGUF is first packed into options.cache_dir, unless an
  // up-to-date packed file is there.
  // Every byte of it is checked, unless that was done before and it was not written to since; a
  // damaged one is packed again from the GGUF.
  // Errors: NOT_FOUND (no such file), INVALID_ARGUMENT (not a usable model: the message names the
  // tensor or key; a weight budget that is too small: it names the least), UNIMPLEMENTED
  // (architecture or tensor type not supported: the message lists those that are), DATA_LOSS
  // (truncated or corrupt), RESOURCE_EXHAUSTED (disk full while packing).
  static absl::StatusOr<std::unique_ptr<Model>> Open(const std::string& path,
                                                     const ModelOptions& options);

  // Name of the kernel target in use. Logits are bit-identical within one target, but for those
  // whose name ends in "-f16" (ModelOptions::exact_prefill).
  virtual std::string_view target() const = 0;
  virtual int32_t threads() const = 0;
  // Rows of a prompt from which on a larger pass does not make a row cheaper. Any thread.
  virtual int32_t piece_rows() const = 0;
  // Binds the calling thread and the model's own threads to a core each, if the process may use
  // exactly as many cores as there are threads. Returns true if all are bound. The calling thread
  // is the one that will run all later passes. See ThreadPool::PinThreads.
  virtual bool PinThreads() = 0;

  // Gives the memory of the weights back until the next Begin, which reads them anew (UNAVAILABLE
  // if that fails: ModelOptions::on_lost). Weights that are streamed, or on a GPU, stay. Returns
  // whether it did. Of the thread of the passes, while no pass is under way.
  virtual bool Rest() { return false; }
  // Whether Begin reads weights anew just now, which may take long. Any thread.
  virtual bool Wakes() const { return false; }

  // What weights take and what reading them has taken so far; all zero if none are streamed. Any
  // thread.
  virtual WeightStreamStats weight_stats() const { return {}; }

  // Whether passes give Row::features. Any thread.
  virtual bool gives_features() const { return false; }

  // The packed file that the weights come from; empty: none. Any thread.
  virtual std::string packed_path() const { return {}; }
  // Whether all weights were copied into memory and checked there, and the model does not rest:
  // what becomes of the file does not change an answer. Any thread.
  virtual bool weights_in_memory() const { return true; }

  // The GGUF's metadata without its tensors; source of the tokenizer and the chat template.
  virtual const GgufFile& metadata() const = 0;

  // Creates a pass that computes every row, writes its K and V to its slot, and writes `logits`
  // [rows with want_logits, vocab_size] f32, in row order. A row's result depends neither on other
  // rows of the batch, nor on the thread count, on how the prefill is split, or on other passes
  // (ARCHITECTURE.md, The engine, Batch-invariant), but for the last bits of long prompts where the
  // target's name ends in "-f16". The memory behind `batch` and `logits` must outlive the pass, and
  // the model must outlive it too. Where passes share a context, none may write a slot that another
  // reads. Errors: INVALID_ARGUMENT (row out of range: token, position, slot, context, level,
  // ancestors; features that the model does not give).
  absl::StatusOr<std::unique_ptr<Pass>> Begin(const Batch& batch, float* logits) override = 0;

  // Runs one pass to its end. Returns CANCELLED once `*cancel` is true; the KV slots of the rows
  // are then undefined. Errors: as Begin; CANCELLED; FAILED_PRECONDITION (blocks that are not in
  // place); as Pass::status.
  absl::Status Forward(const Batch& batch, float* logits,
                       const std::atomic<bool>* cancel = nullptr);
};

}  // namespace withy::engine
