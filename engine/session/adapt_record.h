// A record that was made under one chat template, put into the form that a stricter one takes: so a
// context goes on when its model or its template is changed. Neighbours: conversation.cc encodes
// what comes out. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/chat/template.h"
#include "engine/session/segment.h"

namespace withy::engine {

struct AdaptedRecord {
  std::vector<Segment> segments;  // empty when `adapted` is 0: the record is as it has to be
  std::vector<size_t> origin;     // of each: the first of the given ones that went into it
  size_t recorded = 0;            // of `segments`: those of the record
  int adapted = 0;                // messages that were merged or added
};

// Of `segments` the first `recorded` are the record; what follows is a new prompt, which stays as
// it is, right or wrong. A system message that does not open its run of messages becomes the
// user's. Where the template needs user and assistant in turns, messages of one role in a row
// become one, with an empty line between them, and an answer to nothing gets an empty message of
// the user before it. Adapting what was adapted changes nothing.
AdaptedRecord AdaptRecord(std::span<const Segment> segments, size_t recorded,
                          const ChatTemplate& chat);

}  // namespace withy::engine
