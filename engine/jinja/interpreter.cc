// Statements, scopes and calls. Expressions are in expressions.cc.
#include "engine/jinja/interpreter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/stack_left.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/jinja/methods.h"
#include "engine/jinja/operators.h"

namespace withy::jinja {
namespace {

// As in the sandbox that published templates are written for.
constexpr int64_t kMaxRange = 100'000;
constexpr size_t kCaptureSteps = 32;  // what keeping a scope or a namespace costs

// `status` with the line, unless it has one already or is the template's own refusal.
absl::Status AtLine(const absl::Status& status, int line) {
  if (status.ok() || absl::IsFailedPrecondition(status) ||
      ToStd(status.message()).starts_with("line ")) {
    return status;
  }
  return Annotate(status, absl::StrCat("line ", line));
}

absl::StatusOr<Value> Range(Interpreter& in, const Arguments& arguments) {
  int64_t numbers[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty()) {
    return absl::InvalidArgumentError("range() takes one to three integers");
  }
  for (size_t i = 0; i < count; ++i) {
    const Value& value = arguments.positional[i];
    if (!value.is_integer()) return absl::InvalidArgumentError("range() takes integers");
    numbers[count == 1 ? 1 : i] = value.integer();
  }
  const auto [first, end, step] = numbers;
  if (step == 0) return absl::InvalidArgumentError("range() has a step of 0");
  std::vector<Value> items;
  for (int64_t i = first; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      return absl::ResourceExhaustedError(
          absl::StrCat("range() gives at most ", kMaxRange, " numbers"));
    }
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  WITHY_RETURN_IF_ERROR(in.Spend(items.size()));
  return Value::List(std::move(items));
}

absl::StatusOr<Dict> DictOf(Interpreter& in, const Arguments& arguments) {
  Dict dict;
  for (const Value& from : arguments.positional) {
    if (!from.is_dict()) return absl::InvalidArgumentError("only a dict makes a dict");
    WITHY_RETURN_IF_ERROR(in.Spend(from.dict().size()));
    for (const auto& [key, value] : from.dict().entries()) {
      WITHY_RETURN_IF_ERROR(dict.Set(key, value));
    }
  }
  for (const auto& [name, value] : arguments.named) dict.Set(name, value);
  return dict;
}

}  // namespace

const Value* Arguments::Find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [known, value] : named) {
    if (known == name) return &value;
  }
  return nullptr;
}

// A scope of its own while the guard lives; longer if a macro was defined in it.
class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& in, Scope* parent)
      : in_(in), outer_(in.scope_), scope_(std::make_unique<Scope>(Scope{parent, false, {}})) {
    in_.scope_ = scope_.get();
  }
  explicit ScopeGuard(Interpreter& in) : ScopeGuard(in, in.scope_) {}
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  ~ScopeGuard() {
    in_.scope_ = outer_;
    if (scope_->captured) in_.captured_.push_back(std::move(scope_));
  }

 private:
  Interpreter& in_;
  Scope* const outer_;
  std::unique_ptr<Scope> scope_;
};

absl::Status Interpreter::Spend(size_t units) {
  if (!StackAllows()) return TooDeep();
  units += names_ / kNamesPerStep;
  names_ %= kNamesPerStep;
  steps_ += static_cast<int64_t>(std::min(units, size_t{1} << 40));
  if (steps_ <= options_.max_steps) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the template takes more than ", options_.max_steps, " steps"));
}

absl::Status Interpreter::SpendOn(const Arguments& arguments) {
  for (const Value& value : arguments.positional) WITHY_RETURN_IF_ERROR(SpendBytes(value.weight()));
  for (const auto& [name, value] : arguments.named) {
    WITHY_RETURN_IF_ERROR(SpendBytes(value.weight()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Text> Interpreter::Printed(const Value& value) {
  WITHY_RETURN_IF_ERROR(SpendBytes(value.weight()));
  return Str(value);
}

absl::Status Interpreter::TooDeep() { return StackExhausted("a macro, an expression or a value"); }

absl::Status Interpreter::TooManyLevels() const {
  return absl::ResourceExhaustedError(
      absl::StrCat("the template nests deeper than ", options_.max_nesting,
                   " levels: make what it recurses over, such as a tool's schema, flatter"));
}

absl::StatusOr<Text> Interpreter::Run(const Block& program) {
  const ScopeGuard scope(*this, nullptr);
  Text text;
  out_ = &text;
  Flow flow = Flow::kNext;
  WITHY_RETURN_IF_ERROR(Execute(program, &flow));
  return text;
}

absl::Status Interpreter::Write(const Text& text) {
  WITHY_RETURN_IF_ERROR(SpendBytes(text.weight()));
  if (out_->weight() + text.weight() > options_.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the template writes more than ", options_.max_bytes, " bytes"));
  }
  out_->Append(text);
  return absl::OkStatus();
}

absl::StatusOr<Value> Interpreter::Capture(const Block& body) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  Flow flow = Flow::kNext;
  const absl::Status status = Execute(body, &flow);
  out_ = outer;
  if (!status.ok()) return status;
  return Value::String(std::move(text));
}

absl::Status Interpreter::Execute(const Block& block, Flow* flow) {
  if (++nesting_ > options_.max_nesting) {
    --nesting_;
    return TooManyLevels();
  }
  absl::Status status;
  for (const auto& statement : block) {
    status = AtLine(Execute(*statement, flow), statement->line);
    if (!status.ok() || *flow != Flow::kNext) break;
  }
  --nesting_;
  return status;
}

absl::Status Interpreter::Execute(const Statement& statement, Flow* flow) {
  WITHY_RETURN_IF_ERROR(Spend(1));
  switch (statement.type) {
    case Statement::Type::kText:
      return Write(static_cast<const TextStatement&>(statement).text);
    case Statement::Type::kOutput: {
      const auto& output = static_cast<const OutputStatement&>(statement);
      WITHY_ASSIGN_OR_RETURN(const Value value, Evaluate(*output.expression));
      if (value.is_string()) return Write(value.text());
      WITHY_ASSIGN_OR_RETURN(const Text text, Printed(value));
      return Write(text);
    }
    case Statement::Type::kIf:
      return ExecuteIf(static_cast<const IfStatement&>(statement), flow);
    case Statement::Type::kFor:
      return ExecuteFor(static_cast<const ForStatement&>(statement), flow);
    case Statement::Type::kSet: {
      const auto& set = static_cast<const SetStatement&>(statement);
      WITHY_ASSIGN_OR_RETURN(const Value value, Evaluate(*set.value));
      return Assign(set.target, value);
    }
    case Statement::Type::kSetBlock:
      return ExecuteSetBlock(static_cast<const SetBlockStatement&>(statement));
    case Statement::Type::kMacro: {
      const auto& macro = static_cast<const MacroStatement&>(statement);
      WITHY_RETURN_IF_ERROR(Spend(kCaptureSteps));
      Set(macro.name, MakeMacro(macro));
      return absl::OkStatus();
    }
    case Statement::Type::kCallBlock:
      return ExecuteCallBlock(static_cast<const CallBlockStatement&>(statement));
    case Statement::Type::kFilterBlock: {
      const auto& block = static_cast<const FilterBlockStatement&>(statement);
      std::optional<ScopeGuard> scope(*this);
      WITHY_ASSIGN_OR_RETURN(const Value text, Capture(block.body));
      scope.reset();
      WITHY_ASSIGN_OR_RETURN(const Value filtered, EvaluateFilter(*block.filter, &text));
      WITHY_ASSIGN_OR_RETURN(const Text printed, Printed(filtered));
      return Write(printed);
    }
    case Statement::Type::kWith:
      return ExecuteWith(static_cast<const WithStatement&>(statement), flow);
    case Statement::Type::kBreak:
      *flow = Flow::kBreak;
      return absl::OkStatus();
    case Statement::Type::kContinue:
      *flow = Flow::kContinue;
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status Interpreter::ExecuteIf(const IfStatement& statement, Flow* flow) {
  for (const auto& [condition, body] : statement.branches) {
    if (condition != nullptr) {
      WITHY_ASSIGN_OR_RETURN(const Value value, Evaluate(*condition));
      if (!Truth(value)) continue;
    }
    return Execute(body, flow);
  }
  return absl::OkStatus();
}

absl::Status Interpreter::ExecuteFor(const ForStatement& statement, Flow* flow) {
  WITHY_ASSIGN_OR_RETURN(const Value over, Evaluate(*statement.over));
  WITHY_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(over));
  if (statement.condition != nullptr) {
    std::vector<Value> kept;
    for (Value& item : items) {
      const ScopeGuard scope(*this);
      WITHY_RETURN_IF_ERROR(Assign(statement.target, item));
      WITHY_ASSIGN_OR_RETURN(const Value wanted, Evaluate(*statement.condition));
      if (Truth(wanted)) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    const ScopeGuard scope(*this);
    return Execute(statement.otherwise, flow);
  }
  const auto shared = Value::Share({std::move(items), false, over.depth() + 1, over.weight()});
  const int depth = ++loops_;
  absl::Status status;
  for (size_t i = 0; status.ok() && i < shared->items.size(); ++i) {
    const ScopeGuard scope(*this);
    status = Spend(1);
    if (!status.ok()) break;
    Set("loop", Value::Of(std::make_shared<const LoopState>(LoopState{shared, i, depth})));
    status = Assign(statement.target, shared->items[i]);
    if (!status.ok()) break;
    Flow inner = Flow::kNext;
    status = Execute(statement.body, &inner);
    if (inner == Flow::kBreak) break;
  }
  --loops_;
  return status;
}

absl::Status Interpreter::ExecuteWith(const WithStatement& statement, Flow* flow) {
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.bindings) {
    WITHY_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    values.push_back(std::move(value));
  }
  const ScopeGuard scope(*this);
  for (size_t i = 0; i < values.size(); ++i) {
    WITHY_RETURN_IF_ERROR(Assign(statement.bindings[i].first, values[i]));
  }
  return Execute(statement.body, flow);
}

absl::Status Interpreter::ExecuteSetBlock(const SetBlockStatement& statement) {
  std::optional<ScopeGuard> scope(*this);
  WITHY_ASSIGN_OR_RETURN(Value value, Capture(statement.body));
  scope.reset();
  if (statement.filter != nullptr) {
    WITHY_ASSIGN_OR_RETURN(value, EvaluateFilter(*statement.filter, &value));
  }
  return Assign(statement.target, value);
}

absl::Status Interpreter::ExecuteCallBlock(const CallBlockStatement& statement) {
  WITHY_RETURN_IF_ERROR(Spend(kCaptureSteps));
  Value result;
  {
    // EvaluateCall finds the caller here; macros see it in their own scope.
    const ScopeGuard scope(*this);
    const Value caller = MakeMacro(statement.caller);
    WITHY_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(*statement.call));
    arguments.named.emplace_back("caller", caller);
    WITHY_ASSIGN_OR_RETURN(const Value callee, Evaluate(*statement.call->children[0]));
    if (callee.kind() != Kind::kCallable) {
      return absl::InvalidArgumentError("{% call %} needs a macro");
    }
    WITHY_ASSIGN_OR_RETURN(result, Call(callee.callable(), arguments));
  }
  WITHY_ASSIGN_OR_RETURN(const Text text, Printed(result));
  return Write(text);
}

absl::Status Interpreter::Assign(const Target& target, const Value& value) {
  if (!target.several.empty()) {
    WITHY_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value));
    if (items.size() != target.several.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(items.size(), " values for ", target.several.size(), " names"));
    }
    for (size_t i = 0; i < items.size(); ++i) {
      WITHY_RETURN_IF_ERROR(Assign(target.several[i], items[i]));
    }
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    Set(target.name, value);
    return absl::OkStatus();
  }
  const Value space = Lookup(target.name);
  if (space.kind() != Kind::kNamespace) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", target.name, "' is no namespace: its attributes cannot be set"));
  }
  space.space().values.Set(target.attribute, value);
  return absl::OkStatus();
}

void Interpreter::Set(std::string_view name, Value value) {
  names_ += scope_->names.size();
  for (auto& [known, old] : scope_->names) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  scope_->names.emplace_back(name, std::move(value));
}

Value Interpreter::MakeMacro(const MacroStatement& macro) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) {
    scope->captured = true;
  }
  return Value::Of(Callable{
      .type = Callable::Type::kMacro, .name = macro.name, .macro = &macro, .scope = scope_});
}

absl::StatusOr<Value> Interpreter::Call(const Callable& callable, const Arguments& arguments) {
  if (callable.type == Callable::Type::kMacro) return CallMacro(callable, arguments);
  WITHY_RETURN_IF_ERROR(SpendOn(arguments));
  switch (callable.type) {
    case Callable::Type::kMethod:
      return CallMethod(*this, callable.receiver, callable.name, arguments);
    default:
      break;
  }
  return CallFunction(callable, arguments);
}

absl::StatusOr<Value> Interpreter::CallMacro(const Callable& callable, const Arguments& arguments) {
  const MacroStatement& macro = *callable.macro;
  if (arguments.positional.size() > macro.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("macro '", macro.name, "' takes at most ",
                                                   macro.parameters.size(), " arguments"));
  }
  const ScopeGuard scope(*this, callable.scope);
  for (const auto& [name, value] : arguments.named) {
    WITHY_RETURN_IF_ERROR(Spend(1 + macro.parameters.size() / kNamesPerStep));
    const bool known =
        name == "caller" ||
        std::any_of(macro.parameters.begin(), macro.parameters.end(),
                    [n = name](const auto& parameter) { return parameter.first == n; });
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat("macro '", macro.name, "' has no parameter '", ToAbsl(name), "'"));
    }
    if (name == "caller") Set("caller", value);
  }
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    WITHY_RETURN_IF_ERROR(Spend(1 + arguments.named.size() / kNamesPerStep));
    const auto& [name, initial] = macro.parameters[i];
    if (const Value* given = arguments.Find(i, name)) {
      Set(name, *given);
    } else if (initial != nullptr) {
      WITHY_ASSIGN_OR_RETURN(Value value, Evaluate(*initial));
      Set(name, std::move(value));
    } else {
      Set(name, Value::Undefined(absl::StrCat("parameter '", name, "' was not provided")));
    }
  }
  return Capture(macro.body);
}

absl::StatusOr<Value> Interpreter::CallFunction(const Callable& callable,
                                                const Arguments& arguments) {
  const std::string& name = callable.name;
  if (name == "range") return Range(*this, arguments);
  if (name == "dict") {
    WITHY_ASSIGN_OR_RETURN(Dict dict, DictOf(*this, arguments));
    return Value::Of(std::move(dict));
  }
  if (name == "namespace") {
    WITHY_ASSIGN_OR_RETURN(Dict values, DictOf(*this, arguments));
    WITHY_RETURN_IF_ERROR(Spend(kCaptureSteps));
    namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(values)}));
    return Value::Of(namespaces_.back().get());
  }
  const Value* argument = arguments.Find(0, name == "strftime_now" ? "format" : "message");
  if (argument == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, "() needs an argument"));
  }
  const std::string text = Str(*argument).bytes();
  if (name == "raise_exception") {
    constexpr size_t kShownBytes = 512;
    return absl::FailedPreconditionError(ValidUtf8(text, kShownBytes));
  }
  if (text.empty()) return Value::String("");  // strftime_now
  char buffer[1024];
  const size_t length = std::strftime(buffer, sizeof(buffer), text.c_str(), &options_.now);
  if (length == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("strftime_now() gives at most ", sizeof(buffer) - 1, " bytes"));
  }
  return Value::String(ValidUtf8(std::string_view(buffer, length)));
}

}  // namespace withy::jinja
