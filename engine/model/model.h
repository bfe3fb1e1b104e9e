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
#include "engine/kv/memory.h"
#include "engine/weights/levels.h"

namespace withy::engine {

// One token to compute. Slots number the token places of a context: slot s lives in chunk s /
// info().kv.chunk_tokens. Outside trees slot == position.
struct Row {
  int32_t token = 0;     // [0, vocab_size)
  int32_t position = 0;  // [0, context_length): RoPE angle and place in the causal order
  int32_t slot = 0;      // where this row's K and V are written
  int32_t context = 0;   // index into Batch::contexts
  int32_t level = -1;    // index into info().levels; -1 is the full model
  // The lowest level that anything the row sees was computed at, itself included; -1: its own. What
  // that level has no KV heads for, this row does not attend with (only where levels cut KV heads).
  int32_t context_level = -1;
  bool want_logits = false;  // adds one row to the logits output, in row order
  // Tree rows: slots of the row's ancestors in the tree, root first (ascending positions), itself
  // excluded. A row sees slots [0, position - ancestor_slots.size()), then these, then itself.
  // Empty for plain rows: they see every smaller slot.
  std::span<const int32_t> ancestor_slots = {};
};

// The KV of one context as the caller holds it. Slots below `committed_tokens` are only read; a row
// that would write there is refused.
struct ContextView {
  KvMemory memory = {};
  std::span<const KvBlockName> blocks = {};  // [chunk * layers + layer], info().kv.block_bytes each
  int32_t committed_tokens = 0;
};

// Rows of one context that see each other must come in ascending position order. `spans` are read
// during the call only.
struct Batch {
  std::span<const Row> rows = {};
  std::span<const ContextView> contexts = {};
};

// Shape of the KV blocks that Forward reads and writes at working precision (8 bits). See engine/kv
// for the bytes.
struct KvInfo {
  int32_t chunk_tokens = 16;  // tokens a chunk
  int32_t layers = 0;         // blocks a chunk
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  size_t block_bytes = 0;  // one layer of one chunk, a multiple of 64
};

// What one level costs. A plain model has a single level, the full one.
struct LevelInfo {
  int32_t percent = 100;        // share of the layers' parameters
  int64_t weight_bytes = 0;     // bytes read for one token: layers' prefixes and the output head
  int64_t flops_per_token = 0;  // 2 * multiply-adds of the matrices, attention excluded
};

struct ModelInfo {
  std::string name;          // general.name, or the file's stem; UTF-8
  std::string architecture;  // "llama", "qwen2", "qwen3"
  std::string id;  // 32 hex digits: changes when weights, shape or tokenizer change; stable over
                   // restarts and paths
  std::string
      quantisation;  // type of most weight bytes: "Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32"
  int32_t layers = 0;
  int32_t d_model = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t d_ff = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // tokens; positions must stay below
  int64_t parameters = 0;      // of the whole model, without its levels' LoRA
  int64_t weight_bytes = 0;    // all packed tensors
  KvInfo kv;
  std::vector<LevelInfo> levels;  // ascending; back() is the full model
};

// Called while a GGUF is packed: share done in [0, 1] and what is being done. May be called from
// any thread, one at a time.
using ProgressFn = std::function<void(double done, std::string_view what)>;

struct ModelOptions {
  int32_t threads = 0;  // 0: one a core
  // Kernel target: "" picks the best this CPU has; else "avx512vnni", "avx2", "neon-dotprod" or
  // "portable".
  std::string target;
  // Where packed files are kept when a GGUF is opened; "" is $XDG_CACHE_HOME/withy, else
  // ~/.cache/withy, else the GGUF's own directory.
  std::string cache_dir;
  // Where weights are kept: mapped from the packed file, or copied into pages of 2 MiB
  // (weights/weight_memory.h). kAuto: copied where there is room for it.
  enum class WeightPlace : uint8_t { kAuto, kMapped, kCopied };
  WeightPlace weight_place = WeightPlace::kAuto;
  // Rows computed at once: bounds activation memory. Results do not depend on it.
  int32_t max_piece_rows = 256;
  ProgressFn progress;
  // Levels below the full one instead of the file's own, without LoRA; ascending and nested: no
  // extent may be larger than the next level's.
  std::vector<LevelSpec> levels;
  // For tests and inspection: the residual stream after each layer, [rows, d_model], rows in batch
  // order. Called on Forward's thread. Rows that want no logits are left out of the last layer.
  // Only for batches within max_piece_rows and of one level.
  std::function<void(int32_t layer, std::span<const float> hidden)> layer_tap;
};

class GgufFile;

// The rows of one batch on their way through a model. May be left and gone on with, while others
// are computed: an urgent batch need not wait for a long one. Destroyed before it is over, it
// leaves the KV slots of its rows undefined, as cancelling does.
class Pass {
 public:
  virtual ~Pass() = default;
  // True: every row is computed. False: `stop` held, which is looked at between two pieces of work
  // (a product of all rows is one), or the first layer is computed by which `until` of the work is
  // done; what was computed is kept, and the next Run goes on from there.
  virtual bool Run(const std::atomic<bool>* stop = nullptr, double until = 1) = 0;
  // Of a pass that was left: the share of its work that is done, 0 .. 1.
  virtual double Done() const = 0;
};

// A mapped model and the threads that compute it. Begin, Forward and the passes are for one thread
// at a time; info() for any.
class Model {
 public:
  // Opens a packed file, or a GGUF (packed into options.cache_dir first, unless an up-to-date
  // packed file is there). Errors: NOT_FOUND (no such file), INVALID_ARGUMENT (not a usable model:
  // the message names the tensor or key),
  //   UNIMPLEMENTED (architecture or tensor type not supported: the message lists those that are),
  //   DATA_LOSS (truncated or corrupt), RESOURCE_EXHAUSTED (disk full while packing).
  static absl::StatusOr<std::unique_ptr<Model>> Open(const std::string& path,
                                                     const ModelOptions& options);

  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  // Name of the kernel target in use. Logits are bit-identical within one target.
  virtual std::string_view target() const = 0;
  virtual int32_t threads() const = 0;
  // Gives the calling thread, which is to run all passes from then on, and the model's own threads
  // a core each, where there are just as many; true if so. See ThreadPool::PinThreads.
  virtual bool PinThreads() = 0;

  // The GGUF's metadata (without tensors), from which the tokenizer and chat template are made.
  virtual const GgufFile& metadata() const = 0;

  // A pass that computes every row, writes its K and V to its slot, and writes logits [rows with
  // want_logits, vocab_size] f32, in row order. The result of a row depends on nothing else in the
  // batch, on no thread count, no cutting of the prefill and no other pass (ARCHITECTURE.md, The
  // engine's rules). What `batch` spans and `logits` stay until the pass is gone, and the pass goes
  // before the model. Contexts that passes share must not be written by one where another reads.
  // Errors: INVALID_ARGUMENT (row out of range: token, position, slot, context, level, ancestors).
  virtual absl::StatusOr<std::unique_ptr<Pass>> Begin(const Batch& batch, float* logits) = 0;

  // One pass from beginning to end. Once `cancel` holds the call returns CANCELLED: KV slots of the
  // rows are then undefined. Errors: as Begin; CANCELLED.
  absl::Status Forward(const Batch& batch, float* logits,
                       const std::atomic<bool>* cancel = nullptr);
};

}  // namespace withy::engine
