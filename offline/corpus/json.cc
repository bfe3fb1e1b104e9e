#include "offline/corpus/json.h"

#include <utility>

#include "nlohmann/json.hpp"

namespace withy::corpus {

std::string ToJson(const Record& record) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const Message& message : record.messages) {
    nlohmann::ordered_json fixed = nlohmann::ordered_json::array();
    for (const Span& span : message.fixed) fixed.push_back({span.begin, span.end});
    messages.push_back(
        {{"role", message.role}, {"content", message.content}, {"fixed", std::move(fixed)}});
  }
  const nlohmann::ordered_json line = {{"id", record.id},
                                       {"task", std::string(TaskName(record.task))},
                                       {"difficulty", record.difficulty},
                                       {"shots", record.shots},
                                       {"messages", std::move(messages)},
                                       {"answer", record.answer}};
  return line.dump();
}

}  // namespace withy::corpus
