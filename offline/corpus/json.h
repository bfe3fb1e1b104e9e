// Writes a record as one line of JSON with keys in a fixed order, so that equal corpora are equal
// bytes.
#pragma once

#include <string>

#include "offline/corpus/record.h"

namespace withy::corpus {

// {"id":…,"task":…,"difficulty":…,"shots":…,"messages":[{"role":…,"content":…,"fixed":[[begin,end],…]},…],"answer":…},
// no newline.
std::string ToJson(const Record& record);

}  // namespace withy::corpus
