#include "engine/session/served_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::engine {

absl::StatusOr<std::unique_ptr<ServedModel>> OpenServedModel(const ServedModelOptions& options) {
  ModelOptions model = options.model;
  model.window = options.context_length > 0 ? options.context_length : kDefaultWindow;
  WITHY_ASSIGN_OR_RETURN(ModelBundle bundle, OpenBundle(options.path, model, options.text));
  const int32_t longest = bundle.model->info().context_length;
  if (options.context_length > longest) {
    return absl::InvalidArgumentError(
        absl::StrCat("context_length is ", options.context_length, "; ", options.path, " has ",
                     longest, ": set that or less, or leave it out for the model's own"));
  }
  auto served = std::make_unique<ServedModel>(std::move(bundle));
  served->window =
      options.context_length > 0 ? options.context_length : std::min(longest, kDefaultWindow);
  served->recommended = ReadRecommendedSampling(served->bundle.model->metadata());
  return served;
}

}  // namespace withy::engine
