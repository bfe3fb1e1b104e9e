#include "engine/session/weight_guard.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/weights/packed_check.h"
#include "engine/weights/packer.h"

namespace withy::engine {

PackedFileMetrics::PackedFileMetrics(telemetry::Recorder& recorder)
    : scrubbed_(recorder.counter({.name = "withy_packed_scrubbed_bytes_total",
                                  .help = "Bytes of the packed model checked in idle time.",
                                  .unit = telemetry::Unit::kBytes})),
      damaged_(recorder.counter({.name = "withy_packed_files_damaged_total",
                                 .help = "Times that the packed model was found damaged."})) {}

WeightGuard::WeightGuard(const Model& model, WeightGuardOptions options, PackedFileMetrics& metrics)
    : model_(model), options_(std::move(options)), metrics_(metrics) {
  if (options_.bytes_per_second == 0 || model.packed_path().empty()) return;
  scrubber_ = std::make_unique<Scrubber>(
      ScrubOptions{.path = model.packed_path(),
                   .memo_path = CheckedMemoPath(options_.model_path, options_.cache_dir),
                   .bytes_per_second = options_.bytes_per_second,
                   .interval = options_.interval,
                   .busy = options_.busy,
                   .suspect = [this] { return Suspect(); },
                   .on_bytes = [this](uint64_t bytes) { metrics_.Scrubbed(bytes); },
                   .on_whole = [this] { bad_reads_ = model_.weight_stats().bad_reads; },
                   .on_damage = [this](const absl::Status& damage) { return OnDamage(damage); }});
}

WeightGuard::~WeightGuard() { ending_ = true; }

absl::Status WeightGuard::Trust() {
  const bool follows_file = !model_.weights_in_memory() && !model_.weight_stats().streams();
  if (scrubber_ == nullptr || !follows_file || scrubber_->IsUnchanged()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(model_.packed_path(),
                   " was written to while it is served, and its weights are "
                   "being checked: call again in a moment"));
}

// Whether reads of streamed weights gave wrong bytes since the last check ended.
bool WeightGuard::Suspect() { return model_.weight_stats().bad_reads != bad_reads_; }

// Returns whether the file is whole again.
bool WeightGuard::OnDamage(const absl::Status& damage) {
  std::error_code ignored;  // the memo says that the file is whole
  std::filesystem::remove(CheckedMemoPath(options_.model_path, options_.cache_dir), ignored);
  const bool has_source = model_.packed_path() != options_.model_path &&
                          std::filesystem::exists(options_.model_path, ignored);
  absl::Status repaired =
      absl::FailedPreconditionError("the GGUF that it was made from is not there: put it back");
  if (has_source) repaired = DiscardPacked(options_.model_path, options_.cache_dir, damage);
  if (!model_.weights_in_memory()) {
    if (!has_source) metrics_.Damaged();  // else the start that packs it again counts it
    options_.on_unusable(absl::UnavailableError(absl::StrCat(
        "the model's weights were found damaged: ", damage.message(),
        "; answers since the last check may be wrong; ",
        repaired.ok() ? "they are packed again: call again in a moment" : repaired.message())));
    return false;
  }
  if (repaired.ok()) {
    repaired = PackAgain();
  } else {
    metrics_.Damaged();
  }
  options_.on_harmless(absl::DataLossError(absl::StrCat(
      damage.message(), "; answers are right, because the weights in memory are whole; ",
      repaired.ok() ? "the file was packed again"
                    : absl::StrCat("the next start needs the file: ", repaired.message()))));
  return repaired.ok();
}

absl::Status WeightGuard::PackAgain() {
  ThreadPool pool(1);  // as this thread is, at the lowest priority
  return EnsurePacked(
             options_.model_path, options_.cache_dir, pool, nullptr,
             [this](const absl::Status&) { metrics_.Damaged(); }, &ending_)
      .status();
}

}  // namespace withy::engine
