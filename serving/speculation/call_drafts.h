// What speculation knows of one call, and of the app and the context that it belongs to.
// Neighbours: speculator.h fills and reads it; call_state.h carries it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policy/constants.h"
#include "policy/draft/draft_plan.h"
#include "policy/draft/speculation.h"
#include "policy/draft/token_lookup.h"
#include "serving/speculation/head_tree_kv.h"
#include "serving/speculation/session_tree_kv.h"
#include "serving/speculation/tree_grower.h"

namespace withy::serving {

struct ContextDrafts {
  policy::SpeculationState state{policy::kFirstContextCredit};
  uint64_t last_used = 0;
  bool remembered = false;  // its tokens are among those of the app
};

// One app's; nothing of it is used for another app's calls.
struct AppDrafts {
  explicit AppDrafts(int32_t lookup_tokens) : lookup(lookup_tokens) {}

  policy::TokenLookup lookup;  // of its calls that are over
  policy::SpeculationState state{policy::kFirstAppCredit};
  std::map<std::string, std::shared_ptr<ContextDrafts>> contexts;
  uint64_t last_used = 0;
};

struct CallDrafts {
  // `tokens`: that the call may have. `session` is borrowed.
  CallDrafts(int32_t tokens, std::shared_ptr<AppDrafts> of_app,
             std::shared_ptr<ContextDrafts> of_context, Session& session)
      : own(tokens), app(std::move(of_app)), context(std::move(of_context)), prefix_kv(session) {}

  policy::TokenLookup own;               // of this call's prompt and answer
  size_t fed = 0;                        // tokens of the call that are in it
  const std::shared_ptr<AppDrafts> app;  // shared: the app may be forgotten before its call is over
  const std::shared_ptr<ContextDrafts> context;  // likewise

  // How likely a drafted token is; as long as this is there.
  policy::ConfidenceFn Confidence() const {
    return [this](policy::DraftOrigin origin, double /*probability*/) {
      return step.speculation.Confidence(origin);
    };
  }

  // Of the decode step to come.
  policy::DraftedCall step{.speculation = {context->state, app->state}};
  KvTree prefix;  // the part of its tree that the low level grows, or grew while the last one ran
  SessionTreeKv prefix_kv;
  std::unique_ptr<HeadDrafts> head;  // what the target's draft head grows; null: none yet
  size_t tokens_before = 0;          // of the session
};

}  // namespace withy::serving
