// The TLM as the orchestrator uses it: finds the file, says whether it fits the model that is
// served, reads one prompt at a time. Neighbours: engine/encoder/tlm.h does the reading, prune.h
// uses the scores, prepare.cc asks. Decides nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "engine/encoder/prune.h"
#include "engine/encoder/shape.h"
#include "engine/encoder/tlm.h"
#include "policy/call/call_targets.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// What the TLM makes of one prompt.
struct PromptReading {
  std::vector<engine::PrunableText> messages;  // views of the prompt's texts
  engine::LevelChoice prompt_level;
  engine::LevelChoice model_level;
};

// Bytes that Read() would read.
size_t PromptBytes(const v1::Prompt& prompt);

// The messages of `prompt` (or its text) with their words, all of the same score; refers to it.
std::vector<engine::PrunableText> Unread(const v1::Prompt& prompt);

// Thread-safe.
class TlmReader {
 public:
  // The file that `config` (filled) names, else the one beside its model; empty: none.
  static std::string PathOf(const v1::Config& config);
  // Opens that file and finds out how long reading takes. Null where there is
  // none: switched off, not found at its default place, or a file that is no TLM or is
  // damaged, which is logged with its reason.
  static std::unique_ptr<TlmReader> Open(const v1::Config& config, const Clock& clock);

  // Why this TLM cannot decide for a model with these levels (ascending, in per cent) and this
  // ModelDescription.model_id. Empty: it can. One that was trained for another model does so only
  // where the configuration names it. Logged when it changes.
  std::string WhyUnfit(const std::vector<uint32_t>& model_levels, std::string_view model_id);

  // Reads the messages of `prompt` (or its text) as one text. The result refers to `prompt`. Waits
  // while another call's prompt is read. Errors: as engine::Tlm::Read.
  absl::StatusOr<PromptReading> Read(const v1::Prompt& prompt, const policy::SloRatios& slo);

  // In per cent, ascending.
  const std::vector<int32_t>& prompt_levels() const { return shape_.prompt_levels; }
  const std::vector<int32_t>& model_levels() const { return shape_.model_levels; }
  // How often such a pair is right for prompts of this kind, the prompt's level rounded up to the
  // next one that is known; 0 = not known.
  double PairAccuracy(bool mostly_examples, uint32_t prompt_percent, uint32_t level_percent) const;
  // By its calibration, where there is one that holds here, else measured when it was opened.
  double us_per_byte() const { return us_per_byte_; }
  bool calibrated() const { return calibrated_; }
  const v1::ModelDescription& description() const { return description_; }

 private:
  // `named`: by the configuration, and not found beside the model.
  TlmReader(const std::string& path, bool named, std::unique_ptr<engine::Tlm> tlm);
  // Whether a calibration said how fast it is.
  bool ReadCalibration(const v1::Config& config);
  absl::Status Measure(const Clock& clock);

  const std::string path_;
  const bool named_;
  const engine::TlmShape shape_;
  v1::ModelDescription description_;
  double us_per_byte_ = 0;
  bool calibrated_ = false;
  absl::Mutex mutex_;
  const std::unique_ptr<engine::Tlm> tlm_ ABSL_PT_GUARDED_BY(mutex_);
  std::string unfit_ ABSL_GUARDED_BY(mutex_);
  std::string foreign_ ABSL_GUARDED_BY(mutex_);  // id of the model that it decides for all the same
};

}  // namespace withy::orchestrator
