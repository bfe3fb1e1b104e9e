#include "offline/elastic/text/text_source.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "offline/elastic/text/inputs.h"

namespace withy::elastic {
absl::StatusOr<std::unique_ptr<TextSource>> TextSource::Open(TextSourceOptions options) {
  std::unique_ptr<TextSource> self(new TextSource(std::move(options)));
  if (self->options_.taught || self->options_.text == kOwnText) {
    WITHY_ASSIGN_OR_RETURN(
        self->teacher_,
        Teacher::Open(self->options_.model, self->options_.cache_dir, self->options_.threads));
  }
  return self;
}

int64_t TextSource::AtOnce(const BatchOptions& batches) const {
  return options_.text == kOwnText ? teacher_->BatchesAtOnce(batches) : 1;
}

absl::StatusOr<std::vector<Batch>> TextSource::Read(const engine::GgufFile& file,
                                                    const std::string& flag,
                                                    const BatchOptions& options, double cost_s,
                                                    Checkpointer checkpointer) {
  std::vector<Batch> done;
  if (const auto state = checkpointer.stage_state.Load(); state.has_value()) {
    if (BatchesFrom(*state, &done) && checkpointer.resumed) {
      checkpointer.resumed(static_cast<double>(done.size()) * cost_s);
    }
  }
  std::vector<Batch> given;
  auto wanted = static_cast<size_t>(options.count);
  if (options_.text != kOwnText) {
    WITHY_ASSIGN_OR_RETURN(
        given,
        ReadBatches("withy-elasticize", file,
                    options_.text == kCorpusText ? std::string() : options_.text, flag, options));
    if (teacher_ == nullptr) return given;
    wanted = given.size();
  }
  while (done.size() < wanted) {
    const size_t before = done.size();
    if (given.empty()) {
      WITHY_ASSIGN_OR_RETURN(std::vector<Batch> more,
                             teacher_->Write(static_cast<int64_t>(done.size()), options));
      for (Batch& batch : more) done.push_back(std::move(batch));
    } else {
      done.push_back(given[done.size()]);
      WITHY_RETURN_IF_ERROR(teacher_->Label(&done.back()));
    }
    if (checkpointer.advance) {
      checkpointer.advance(static_cast<double>(done.size() - before) * cost_s);
    }
    WITHY_RETURN_IF_ERROR(checkpointer.stage_state.SaveIfDue([&] { return TensorsOf(done); }));
  }
  done.resize(wanted);
  if (!options_.taught) {
    for (Batch& batch : done) batch.taught_ids = batch.taught_logs = torch::Tensor();
  }
  return done;
}

}  // namespace withy::elastic
