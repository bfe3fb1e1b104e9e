// Adapts a record made under one chat template to the rules of a stricter one, so that a context
// can continue after its model or template has changed. Neighbour: conversation.cc encodes the
// result. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/chat/template.h"
#include "engine/session/segment.h"

namespace withy::engine {

struct AdaptedRecord {
  std::vector<Segment> segments;  // empty if `adapted` is 0: the record fits as it is
  std::vector<size_t> origin;     // per segment: index of the first input segment merged into it
  size_t recorded = 0;            // number of `segments` that come from the record
  int adapted = 0;                // number of messages that were merged or added
};

// The first `recorded` of `segments` are the record; the rest is a new prompt, which is not
// changed, valid or not. A message whose role the template does not take at its place (a system
// message that does not open its run of messages, a tool's result) becomes a user message. Calls
// that the template does not show become text of their message. If the
// template requires user and assistant to alternate, consecutive messages of one role are merged,
// separated by an empty line, and an answer without a question gets an empty user message before
// it. Idempotent.
AdaptedRecord AdaptRecord(std::span<const Segment> segments, size_t recorded,
                          const ChatTemplate& chat);

}  // namespace withy::engine
