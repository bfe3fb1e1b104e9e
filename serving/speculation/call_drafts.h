// What speculation knows of one call, and of the app and the context that it belongs to.
// Neighbours: speculator.h fills and reads it; call_state.h carries it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policy/constants.h"
#include "policy/draft/draft_tree.h"
#include "policy/draft/speculation.h"
#include "policy/draft/token_lookup.h"
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

// Bounds of the tree of a step.
struct TreeBounds {
  int32_t depth = 0;
  int32_t nodes = 0;
};

struct CallDrafts {
  // `tokens`: that the call may have. `session` is borrowed.
  CallDrafts(int32_t tokens, std::shared_ptr<AppDrafts> of_app,
             std::shared_ptr<ContextDrafts> of_context, Session& session)
      : own(tokens), app(std::move(of_app)), context(std::move(of_context)), prefix_kv(session) {}

  policy::CallSpeculation speculation() const { return {context->state, app->state}; }

  policy::TokenLookup own;               // of this call's prompt and answer
  size_t fed = 0;                        // tokens of the call that are in it
  const std::shared_ptr<AppDrafts> app;  // shared: the app may be forgotten before its call is over
  const std::shared_ptr<ContextDrafts> context;  // likewise

  // Of the decode step to come.
  policy::DraftTree tree;
  KvTree prefix;  // the part of it that the low level grows, or grew while the last one ran
  SessionTreeKv prefix_kv;
  // The model by which it could go on growing while the step waits for weights, the same if it
  // does, and whether it has KV to compute before.
  std::optional<policy::DraftSourceKind> window_source;
  std::optional<policy::DraftSourceKind> windows;
  bool window_catches_up = false;
  bool worker_grew = false;  // draft_worker did so in the last step
  TreeBounds bounds;
  std::vector<int32_t> chosen;  // nodes of the tree that are verified: its rows but the root
  size_t tokens_before = 0;     // of the session
  double draft_ms = 0;          // that drafting took, for this call or others of its step
  double catch_up_ms = 0;       // of that: for the draft's KV of tokens from before
  double plain_ms = 0;          // that the step would take without drafts
  int32_t other_rows = 0;       // of other calls that decode
  std::optional<policy::DraftSourceKind> model;  // that drafted for this call
};

}  // namespace withy::serving
