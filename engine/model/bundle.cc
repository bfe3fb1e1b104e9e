#include "engine/model/bundle.h"

#include <utility>

#include "base/status.h"

namespace withy::engine {

absl::StatusOr<ModelBundle> OpenBundle(const std::string& path, const ModelOptions& options,
                                       std::string_view chat_template) {
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Open(path, options));
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, MakeTokenizer(model->metadata()));
  WITHY_ASSIGN_OR_RETURN(ChatTemplate chat,
                         ChatTemplate::FromFile(model->metadata(), chat_template));
  if (tokenizer->vocab_size() > model->info().vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the tokenizer has ",
                                                   tokenizer->vocab_size(), " tokens, the model ",
                                                   model->info().vocab_size));
  }
  return ModelBundle{std::move(model), std::move(tokenizer), std::move(chat)};
}

}  // namespace withy::engine
