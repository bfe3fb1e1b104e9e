#include "serving/speculation/lookup_drafter.h"

#include "serving/speculation/allowed_drafts.h"

namespace withy::serving {

policy::DraftOffer LookupDrafter::Follow(const DraftTask& task) {
  const std::span<const int32_t> tokens = task.session.tokens();
  task.drafts.own.Append(tokens.subspan(task.drafts.fed));
  task.drafts.fed = tokens.size();
  return {.ready = true};
}

DraftResult LookupDrafter::Grow(std::span<const DraftTask> tasks, const DraftTime& /*time*/) {
  for (const DraftTask& task : tasks) {
    AddForced(task.session.answer().constraint(), task.limits.max_depth, &task.drafts.step);
    for (const policy::TokenLookup* lookup : {&task.drafts.own, &task.drafts.app->lookup}) {
      policy::AddMatches(*lookup, task.session.tokens(), task.limits.max_depth, &task.drafts.step);
    }
  }
  return {.came = true};
}

}  // namespace withy::serving
