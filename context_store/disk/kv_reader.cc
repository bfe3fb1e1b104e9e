#include "context_store/disk/kv_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "context_store/invariant.h"

namespace withy::context_store {
namespace {

// Longest time that a request's bytes are checked and copied before the next one is made.
constexpr int64_t kCopiedNs = kNanosPerMilli;

// Whether a chunk with a target has bytes in the piece that are wanted.
bool IsWanted(const KvPiece& piece, const KvExtentRead& read) {
  if (!read.LayerAt(piece.layer).wanted) return false;
  bool wanted = false;
  ForEachBlockPart(piece, read.extent.block_bytes, [&](size_t chunk, uint32_t, uint32_t, uint32_t) {
    wanted = wanted || read.targets[chunk] != nullptr;
  });
  return wanted;
}

// File offsets of the aligned range that holds pieces `first` .. `last` and their checks.
struct FileRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  size_t bytes() const { return static_cast<size_t>(end - begin); }
};
FileRange RangeOf(const KvExtent& extent, const KvExtentLayout& layout, uint32_t first,
                  uint32_t last) {
  const KvPiece end = layout.Piece(last);
  return {(extent.offset + layout.Piece(first).offset) / kDiskAlign * kDiskAlign,
          RoundUp(extent.offset + end.offset + end.bytes + kKvCheckBytes, kDiskAlign)};
}
static_assert(KvReader::kRequestBytes >= kKvPieceBytes + kKvCheckBytes + 2 * kDiskAlign);

// Whether the extent's layers have places among those of the read.
bool LayersFit(const KvExtentRead& part, uint32_t layers) {
  if (part.layers.empty()) return part.extent.layers == layers;
  for (size_t i = 0; i < part.layers.size(); ++i) {
    if (part.layers[i].layer >= layers) return false;
    if (i > 0 && part.layers[i].layer <= part.layers[i - 1].layer) return false;
  }
  return part.extent.layers == part.layers.size();
}

absl::Status CheckRead(const KvRead& read) {
  for (const KvExtentRead& part : read.extents) {
    if (!LayersFit(part, read.layers) || part.targets.size() != part.extent.identities.size() ||
        part.targets.empty() || part.layer_stride < part.extent.block_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "read of a KV extent with ", part.extent.layers, " layers, ",
          part.extent.identities.size(), " chunks and blocks of ", part.extent.block_bytes,
          " bytes: asked for ", read.layers, " layers, ", part.targets.size(),
          " chunks and blocks every ", part.layer_stride, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckProtection(const KvExtentRead& part) {
  const bool encrypted = part.extent.protection == KvProtection::kAes256Gcm;
  if (encrypted == (part.owner.key != nullptr)) return absl::OkStatus();
  return absl::FailedPreconditionError(encrypted ? "it is encrypted, and the context has no key"
                                                 : "it is not encrypted");
}

}  // namespace

std::string KvSegmentPath(const std::string& directory, uint64_t segment) {
  return absl::StrFormat("%s/%016x.kv", directory, segment);
}

absl::StatusOr<std::unique_ptr<KvReader>> KvReader::Create(KvReaderOptions options) {
  WITHY_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Allocate(kDepth * kRequestBytes));
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<DiskQueue> queue,
                         DiskQueue::Create(options.queue, kDepth));
  return std::unique_ptr<KvReader>(
      new KvReader(std::move(options), std::move(memory), std::move(queue)));
}

uint32_t KvReaderOptions::DefaultHelpers() {
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxHelpers + 1) - 1;
}

KvReader::KvReader(KvReaderOptions options, HugeMemory memory, std::unique_ptr<DiskQueue> queue)
    : options_(std::move(options)),
      memory_(std::move(memory)),
      queue_(std::move(queue)),
      to_place_(size_t{kSlotsPerHelper} * options_.helpers) {
  for (size_t i = 0; i < kDepth; ++i) {
    slots_.push_back({.buffer = memory_.bytes().subspan(i * kRequestBytes, kRequestBytes)});
    free_slots_.push_back(i);
  }
  queue_->Prepare(memory_.bytes());
  for (uint32_t i = 0; i < options_.helpers; ++i) {
    helpers_.emplace_back([this, i] { Help(i); });
  }
  thread_ = std::thread([this] { Run(); });
}

KvReader::~KvReader() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    cancelled_ = live_;
  }
  queue_->Wake();
  thread_.join();
  to_place_.Close();
  for (std::thread& helper : helpers_) helper.join();
}

absl::StatusOr<KvReadId> KvReader::Start(KvRead read) {
  WITHY_RETURN_IF_ERROR(CheckRead(read));
  auto job = std::make_unique<Job>();
  job->read = std::move(read);
  Plan(job.get());
  KvReadId id = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (live_.size() >= kMaxReads) {
      return absl::ResourceExhaustedError(
          absl::StrCat(live_.size(), " reads of KV are running, the limit"));
    }
    id = job->id = ++last_id_;
    live_.insert(id);
    new_jobs_.push_back(std::move(job));
  }
  queue_->Wake();
  return id;
}

void KvReader::Cancel(KvReadId id) {
  {
    absl::MutexLock lock(&mutex_);
    if (live_.contains(id)) cancelled_.insert(id);
    const bool inside = std::this_thread::get_id() == thread_.get_id();
    const auto left = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !placing_.contains(id) && (inside || current_ != id);
    };
    mutex_.Await(absl::Condition(&left));
  }
  queue_->Wake();
}

// Cuts the wanted pieces of each extent into requests as large as a buffer, those of the first
// layers by layer.
void KvReader::Plan(Job* job) {
  job->extents.resize(job->read.extents.size());
  for (uint32_t e = 0; e < job->extents.size(); ++e) {
    const KvExtentRead& part = job->read.extents[e];
    const KvExtentLayout layout = part.extent.layout();
    std::vector<uint32_t>& left = job->extents[e].left;
    left.assign(job->read.layers, 0);
    const bool large = layout.LayerDataBytes() >= kSingleLayerBytes;
    bool extend = false;  // the piece before is the last of the last unit
    uint32_t layer = 0;   // of that piece
    for (uint32_t number = 0; number < layout.Pieces(); ++number) {
      const KvPiece piece = layout.Piece(number);
      if (!IsWanted(piece, part)) {
        extend = false;
        continue;
      }
      ++left[part.LayerAt(piece.layer).layer];
      const bool apart = large && piece.layer <= kSingleLayers && piece.layer != layer;
      layer = piece.layer;
      if (extend && !apart &&
          RangeOf(part.extent, layout, job->units.back().first, number).bytes() <= kRequestBytes) {
        ++job->units.back().pieces;
      } else {
        job->units.push_back({e, number, 1});
      }
      extend = true;
    }
  }
  const auto first_layer = [&](const Unit& unit) {
    const KvExtentRead& part = job->read.extents[unit.extent];
    return part.LayerAt(unit.first / part.extent.layout().PiecesPerLayer()).layer;
  };
  std::stable_sort(job->units.begin(), job->units.end(),
                   [&](const Unit& a, const Unit& b) { return first_layer(a) < first_layer(b); });
}

void KvReader::Run() {
  while (true) {
    const bool stop = TakeNew();
    TakePlaced();
    IssueMore();
    DropFinished();
    if (stop && free_slots_.size() == slots_.size()) return;
    if (const std::optional<DiskCompletion> completion = queue_->Wait()) Handle(*completion);
  }
}

// Returns whether the reader is to stop.
bool KvReader::TakeNew() {
  std::deque<std::unique_ptr<Job>> taken;
  bool stop = false;
  {
    absl::MutexLock lock(&mutex_);
    taken.swap(new_jobs_);
    stop = stop_;
  }
  for (std::unique_ptr<Job>& job : taken) {
    jobs_.push_back(std::move(job));
    if (!Begin(*jobs_.back())) continue;
    Advance(*jobs_.back());  // layers of which nothing is wanted
    End();
  }
  return stop;
}

void KvReader::TakePlaced() {
  std::vector<Placed> placed;
  {
    absl::MutexLock lock(&mutex_);
    placed.swap(placed_);
  }
  for (const Placed& each : placed) Finish(each.slot, each.status);
}

void KvReader::DropFinished() {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    Job& job = **it;
    if (!job.over) job.over = Cancelled(job);
    if (!job.over || job.in_flight > 0) {
      ++it;
      continue;
    }
    {
      absl::MutexLock lock(&mutex_);
      live_.erase(job.id);
      cancelled_.erase(job.id);
    }
    it = jobs_.erase(it);
  }
}

void KvReader::IssueMore() {
  // A simulated disk delivers in the order in which it was asked: one request at a time.
  const size_t kept = options_.bytes_per_second > 0 ? slots_.size() - 1 : 0;
  for (const std::unique_ptr<Job>& job : jobs_) {
    while (free_slots_.size() > kept && !job->over && job->next_unit < job->units.size()) {
      if (!Issue(*job, job->units[job->next_unit++])) break;
    }
  }
}

// Returns false if the job was cancelled.
bool KvReader::Issue(Job& job, const Unit& unit) {
  ExtentState& state = job.extents[unit.extent];
  if (state.failed()) return true;
  const KvExtentRead& part = job.read.extents[unit.extent];
  if (!state.fd.valid()) {
    absl::Status status = CheckProtection(part);
    if (status.ok()) {
      auto fd = OpenDiskFile(KvSegmentPath(options_.directory, part.extent.segment),
                             {.direct = options_.direct});
      status = fd.status();
      if (fd.ok()) {
        state.fd = *std::move(fd);
        state.sealers.resize(options_.helpers + 1);
      }
    }
    if (!status.ok()) {
      state.failure = std::move(status);
      if (!Begin(job)) return false;
      TellFailure(job, unit.extent);
      Advance(job);
      End();
      return true;
    }
  }
  const FileRange range =
      RangeOf(part.extent, part.extent.layout(), unit.first, unit.first + unit.pieces - 1);
  const size_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.job = &job;
  slot.unit = unit;
  slot.file_offset = range.begin;
  slot.wanted = range.bytes();
  slot.filled = 0;
  if (options_.bytes_per_second > 0) {
    const double took =
        1e9 * static_cast<double>(slot.wanted) / static_cast<double>(options_.bytes_per_second);
    // It went on while what it delivered last was copied.
    disk_free_ns_ = std::max(disk_free_ns_, Clock::Real().SteadyNanos() - kCopiedNs) +
                    static_cast<int64_t>(took);
    slot.due_ns = disk_free_ns_;
  }
  ++job.in_flight;
  ++state.in_flight;
  Submit(index);
  return true;
}

void KvReader::Submit(size_t index) {
  const Slot& slot = slots_[index];
  queue_->Submit({.kind = DiskRequest::Kind::kRead,
                  .fd = slot.job->extents[slot.unit.extent].fd.get(),
                  .offset = slot.file_offset + slot.filled,
                  .memory = slot.buffer.subspan(slot.filled, slot.wanted - slot.filled),
                  .tag = index});
}

void KvReader::Handle(const DiskCompletion& completion) {
  Slot& slot = slots_[completion.tag];
  Job& job = *slot.job;
  const bool retry = completion.result == -EINTR || completion.result == -EAGAIN;
  if (completion.result > 0) {
    slot.filled += static_cast<size_t>(completion.result);
    bytes_read_ += static_cast<uint64_t>(completion.result);
  }
  // A short read that ends at a multiple of kDiskAlign need not be the file's end.
  const bool more =
      completion.result > 0 && slot.filled < slot.wanted && slot.filled % kDiskAlign == 0;
  if (retry || more) {
    Submit(completion.tag);
    return;
  }
  WaitUntilDue(slot);
  absl::Status status;
  if (completion.result < 0) {
    status = absl::ErrnoToStatus(static_cast<int>(-completion.result),
                                 absl::StrCat("read of ", slot.wanted, " bytes failed"));
  } else if (slot.filled < slot.wanted) {
    status = absl::DataLossError(
        absl::StrCat("the file was cut: it ends at ", slot.file_offset + slot.filled));
  } else if (!job.extents[slot.unit.extent].failed() && BeginPlacing(job)) {
    if (to_place_.TryPush(size_t{completion.tag})) return;
    status = Place(slot, options_.helpers);  // all helpers are busy
    absl::MutexLock lock(&mutex_);
    EndPlacing(job);
  }
  Finish(completion.tag, status);
}

void KvReader::Help(uint32_t helper) {
  while (const std::optional<size_t> index = to_place_.Pop()) {
    const Slot& slot = slots_[*index];
    absl::Status status = Place(slot, helper);
    {
      absl::MutexLock lock(&mutex_);
      EndPlacing(*slot.job);
      placed_.push_back({*index, std::move(status)});
    }
    queue_->Wake();
  }
}

// Checks the pieces of a filled buffer and copies them to the targets.
absl::Status KvReader::Place(const Slot& slot, uint32_t thread) const {
  const KvExtentRead& part = slot.job->read.extents[slot.unit.extent];
  std::unique_ptr<KvPieceSealer>& sealer = slot.job->extents[slot.unit.extent].sealers[thread];
  if (sealer == nullptr) {
    sealer =
        std::make_unique<KvPieceSealer>(part.owner, part.extent, KvPieceSealer::Direction::kOpen);
  }
  const KvExtentLayout layout = part.extent.layout();
  for (uint32_t i = 0; i < slot.unit.pieces; ++i) {
    const KvPiece piece = layout.Piece(slot.unit.first + i);
    const uint64_t offset = part.extent.offset + piece.offset;
    const std::span<std::byte> bytes =
        slot.buffer.subspan(offset - slot.file_offset, piece.bytes + kKvCheckBytes);
    if (!sealer->Open(piece, bytes)) {
      return absl::DataLossError(
          absl::StrCat("layer ", piece.layer, ", ", piece.bytes, " bytes at ", offset,
                       ": the check does not match: they are damaged, or another extent's"));
    }
    const uint32_t block = part.LayerAt(piece.layer).block;
    ForEachBlockPart(piece, layout.block_bytes,
                     [&](size_t chunk, uint32_t in_block, uint32_t in_piece, uint32_t count) {
                       std::byte* const target = part.targets[chunk];
                       if (target == nullptr) return;
                       std::memcpy(target + block * part.layer_stride + in_block,
                                   bytes.data() + in_piece, count);
                     });
  }
  return absl::OkStatus();
}

// A request and the work on its data are over. That an extent failed is told when none of its
// requests runs any more: its targets may be used otherwise from then on.
void KvReader::Finish(size_t index, const absl::Status& status) {
  Slot& slot = slots_[index];
  Job& job = *slot.job;
  ExtentState& state = job.extents[slot.unit.extent];
  --state.in_flight;
  state.failure.Update(status);
  if ((!state.failed() || state.in_flight == 0) && Begin(job)) {
    const KvExtentRead& part = job.read.extents[slot.unit.extent];
    const uint32_t per_layer = part.extent.layout().PiecesPerLayer();
    if (state.failed()) {
      TellFailure(job, slot.unit.extent);
    } else {
      for (uint32_t i = 0; i < slot.unit.pieces; ++i) {
        --state.left[part.LayerAt((slot.unit.first + i) / per_layer).layer];
      }
    }
    Advance(job);
    End();
  }
  --job.in_flight;
  slot.job = nullptr;
  free_slots_.push_back(index);
}

void KvReader::TellFailure(Job& job, uint32_t extent) {
  ExtentState& state = job.extents[extent];
  std::fill(state.left.begin(), state.left.end(), 0);
  const KvExtent& failed = job.read.extents[extent].extent;
  if (Cancelled(job) || !job.read.on_failed) return;
  job.read.on_failed(
      extent,
      Annotate(state.failure,
               absl::StrCat("KV segment ", KvSegmentPath(options_.directory, failed.segment),
                            ", extent at offset ", failed.offset)));
}

void KvReader::Advance(Job& job) {
  const auto arrived = [&](uint32_t layer) {
    return std::all_of(job.extents.begin(), job.extents.end(),
                       [&](const ExtentState& state) { return state.left[layer] == 0; });
  };
  while (!job.over && job.next_layer < job.read.layers && arrived(job.next_layer)) {
    if (Cancelled(job)) return;
    const uint32_t layer = job.next_layer++;
    if (job.read.on_layer) job.read.on_layer(layer);
  }
  if (job.over || job.next_layer < job.read.layers || Cancelled(job)) return;
  job.over = true;
  if (job.read.on_done) job.read.on_done();
}

void KvReader::WaitUntilDue(const Slot& slot) {
  constexpr int64_t kStepNs = 2 * kNanosPerMilli;  // then a cancelled read is noticed
  if (options_.bytes_per_second == 0) return;
  while (!Cancelled(*slot.job)) {
    const int64_t wait_ns = slot.due_ns - Clock::Real().SteadyNanos();
    if (wait_ns <= 0) return;
    absl::SleepFor(absl::Nanoseconds(std::min(wait_ns, kStepNs)));
  }
}

bool KvReader::Begin(Job& job) {
  absl::MutexLock lock(&mutex_);
  if (cancelled_.contains(job.id)) job.over = true;
  if (job.over) return false;
  current_ = job.id;
  return true;
}

void KvReader::End() {
  absl::MutexLock lock(&mutex_);
  current_ = 0;
}

bool KvReader::BeginPlacing(const Job& job) {
  absl::MutexLock lock(&mutex_);
  if (cancelled_.contains(job.id)) return false;
  ++placing_[job.id];
  return true;
}

void KvReader::EndPlacing(const Job& job) {
  const auto it = placing_.find(job.id);
  if (--it->second == 0) placing_.erase(it);
}

bool KvReader::Cancelled(const Job& job) {
  absl::MutexLock lock(&mutex_);
  return cancelled_.contains(job.id);
}

}  // namespace withy::context_store
