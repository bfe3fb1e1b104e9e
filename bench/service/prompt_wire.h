// Turns a corpus record into a request's prompt, for benchmarks that call the running service.
#pragma once

#include <cstdint>

#include "offline/corpus/record.h"
#include "withy/v1/types.pb.h"

namespace withy::bench {

inline void FillPrompt(const corpus::Record& record, v1::Prompt* prompt) {
  for (const corpus::Message& message : record.messages) {
    v1::Message* out = prompt->mutable_messages()->add_messages();
    out->set_role(message.role);
    out->set_content(message.content);
    for (const corpus::Span& span : message.fixed) {
      v1::ByteSpan* fixed = out->add_fixed();
      fixed->set_begin(static_cast<uint32_t>(span.begin));
      fixed->set_end(static_cast<uint32_t>(span.end));
    }
  }
}

}  // namespace withy::bench
