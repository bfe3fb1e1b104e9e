// Runs a parsed template. Neighbours: ast.h (the program), operators.h, methods.h; filters.h and
// predicates.cc call back. Not thread-safe: one interpreter renders once.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/jinja/ast.h"
#include "engine/jinja/template.h"
#include "engine/jinja/value.h"

namespace withy::jinja {

// Arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  // The argument at `index` or with this name; null if it is not given.
  const Value* Find(size_t index, std::string_view name) const;
  bool empty() const { return positional.empty() && named.empty(); }
};

// Variables of a block; the parent's are seen through it.
struct Scope {
  Scope* parent = nullptr;
  bool captured = false;  // a macro refers to it
  std::vector<std::pair<std::string_view, Value>> names;
};

class Interpreter {
 public:
  Interpreter(const Dict& globals, const RenderOptions& options)
      : globals_(globals), options_(options) {}
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  absl::StatusOr<Text> Run(const Block& program);

  // Before each piece of work. A unit is one evaluated node or kBytesPerStep bytes of text. Errors:
  // RESOURCE_EXHAUSTED past the limit, and where the stack does not allow another level.
  absl::Status Spend(size_t units);
  absl::Status SpendBytes(size_t bytes) { return Spend(bytes / kBytesPerStep + 1); }
  // For what may walk over all arguments; a macro does not.
  absl::Status SpendOn(const Arguments& arguments);
  // Str() of `value`.
  absl::StatusOr<Text> Printed(const Value& value);

  // object.name and object[key]; what is not there is undefined. Errors: INVALID_ARGUMENT for an
  // undefined object.
  absl::StatusOr<Value> Attribute(const Value& object, std::string_view name);
  absl::StatusOr<Value> Item(const Value& object, const Value& key);
  // What a loop over `value` gives: items, keys of a dict, characters. Errors: INVALID_ARGUMENT for
  // what is not iterable.
  absl::StatusOr<std::vector<Value>> Iterate(const Value& value);
  absl::StatusOr<Value> Call(const Callable& callable, const Arguments& arguments);

  const RenderOptions& options() const { return options_; }

 private:
  static constexpr size_t kBytesPerStep = 16;
  static constexpr size_t kNamesPerStep = 16;
  enum class Flow { kNext, kBreak, kContinue };
  class ScopeGuard;
  class DepthGuard;

  static absl::Status TooDeep();  // for the stack
  absl::Status TooManyLevels() const;
  // What `body` writes, in a scope of its own unless there is one already.
  absl::StatusOr<Value> Capture(const Block& body);
  absl::Status Execute(const Block& block, Flow* flow);
  absl::Status Execute(const Statement& statement, Flow* flow);
  absl::Status Write(const Text& text);
  absl::Status ExecuteIf(const IfStatement& statement, Flow* flow);
  absl::Status ExecuteFor(const ForStatement& statement, Flow* flow);
  absl::Status ExecuteWith(const WithStatement& statement, Flow* flow);
  absl::Status ExecuteSetBlock(const SetBlockStatement& statement);
  absl::Status ExecuteCallBlock(const CallBlockStatement& statement);
  absl::Status Assign(const Target& target, const Value& value);
  void Set(std::string_view name, Value value);
  Value MakeMacro(const MacroStatement& macro);

  absl::StatusOr<Value> Evaluate(const Expression& node);
  absl::StatusOr<Value> EvaluateNode(const Expression& node);
  absl::StatusOr<Value> EvaluateUnary(const Expression& node);
  absl::StatusOr<Value> EvaluateContainer(const Expression& node);
  absl::StatusOr<Value> EvaluateCompare(const Expression& node);
  absl::StatusOr<Value> EvaluateSlice(const Expression& node);
  absl::StatusOr<Value> EvaluateCall(const Expression& node);
  absl::StatusOr<Value> EvaluateFilter(const Expression& node, const Value* input);
  absl::StatusOr<Arguments> EvaluateArguments(const Expression& node);
  absl::StatusOr<Value> Concat(const Expression& node);
  Value Lookup(const std::string& name);
  absl::StatusOr<Value> CallMacro(const Callable& callable, const Arguments& arguments);
  absl::StatusOr<Value> CallFunction(const Callable& callable, const Arguments& arguments);

  const Dict& globals_;
  const RenderOptions& options_;
  int64_t steps_ = 0;
  size_t names_ = 0;  // compared since the last Spend()
  int nesting_ = 0;   // of C++ calls
  int loops_ = 0;
  Text* out_ = nullptr;
  Scope* scope_ = nullptr;
  std::vector<std::unique_ptr<Scope>> captured_;  // scopes that macros refer to
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

}  // namespace withy::jinja
