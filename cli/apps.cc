// withyctl apps: registers apps and shows them to the operator.
#include <unistd.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/models/token_files.h"
#include "cli/output.h"

namespace withy::cli {
namespace {

// The token alone: as a header's value, a file may not end with a newline. A terminal gets one.
void PrintToken(const std::string& token) {
  std::cout << token << (isatty(STDOUT_FILENO) == 1 ? "\n" : "");
}

// Stores the new token of `app` in `file`, if given, and prints the requested output. A token that
// cannot be stored is printed, because the service returns it only once.
int Keep(const Args& args, const std::string& app, const v1::BindAppResponse& bound,
         const absl::StatusOr<std::unique_ptr<TokenFile>>& file) {
  const bool print = args.Has("print");
  absl::Status kept = file.ok() ? (*file)->Save(bound.token()) : file.status();
  if (!kept.ok()) {
    std::cout << (args.Has("json") ? ToJson(bound) : bound.token()) << std::endl;
    kept = Annotate(kept, absl::StrCat("app ", app,
                                       " has the token on standard output, which is "
                                       "kept nowhere else"));
    const int code = Fail(kept);
    return print ? kExitOk : code;
  }
  if (print) {
    PrintToken(bound.token());
    return kExitOk;
  }
  const absl::Status used = (*file)->MakeDefault();
  if (const std::string& other = (*file)->moved_app_id(); !other.empty()) {
    std::cerr << "the token stored there before belongs to " << other << ": --app " << other
              << " uses it\n";
  }
  if (args.Has("json")) {
    std::cout << ToJson(bound) << "\n";
  } else {
    std::cout << "app " << app << " is " << bound.app_id() << "; its token is kept in "
              << (*file)->path()
              << (used.ok() ? " and used from now on\n" : ": --app " + app + " uses it\n");
  }
  return used.ok() ? kExitOk : Fail(used);
}

// An error of the command line; empty: it is correct.
std::string WrongUsage(const Args& args, const std::string& command) {
  if (args.positional().size() != 1) return command + " takes one NAME";
  if (args.Has("print") && args.Has("json")) return "give --print or --json, not both";
  return std::string(CheckAppName(args.positional()[0]).message());
}

int RunBind(const Args& args) {
  if (const std::string wrong = WrongUsage(args, "apps bind"); !wrong.empty())
    return FailUsage(wrong);
  const std::string& app = args.positional()[0];
  const bool print = args.Has("print");
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  // Renews with the stored token, unless another is given.
  const auto known = ReadToken(app);
  if (known.ok() && !args.Has("token") && !args.Has("app")) {
    if (const absl::Status use = (*client)->UseToken(*known, "app " + app); !use.ok())
      return Fail(use);
    if (print) {
      v1::ListContextsRequest least;
      least.set_page_size(1);
      const absl::Status holds = (*client)->ListContexts(least).status();
      if (holds.ok()) PrintToken(*known);
      if (!absl::IsUnauthenticated(holds)) return holds.ok() ? kExitOk : Fail(holds);
    }
  }
  const auto file = TokenFile::Create(app);
  if (!file.ok() && !print) return Fail(file.status());
  v1::BindAppRequest request;
  request.set_app(app);
  const auto bound = (*client)->BindApp(request);
  return bound.ok() ? Keep(args, app, *bound, file) : Fail(bound.status());
}

int RunRenew(const Args& args) {
  if (const std::string wrong = WrongUsage(args, "apps renew"); !wrong.empty())
    return FailUsage(wrong);
  const std::string& app = args.positional()[0];
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto file = TokenFile::Create(app);
  if (!file.ok() && !args.Has("print")) return Fail(file.status());
  const auto bound = (*client)->RenewApp(app);
  return bound.ok() ? Keep(args, app, *bound, file) : Fail(bound.status());
}

int ListApps(const Args& args) {
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto apps = (*client)->ListApps();
  if (!apps.ok()) return Fail(apps.status());
  if (args.Has("json")) {
    std::cout << ToJson(*apps) << "\n";
    return kExitOk;
  }
  const int64_t now = Clock::Real().UnixNanos() / kNanosPerSecond;
  std::vector<std::vector<std::string>> rows = {{"APP", "ID", "CONTEXTS", "TEXT", "BOUND"}};
  for (const v1::AppInfo& app : apps->apps()) {
    rows.push_back({app.app(), app.app_id(), std::to_string(app.contexts()), Bytes(app.bytes()),
                    Ago(app.created_unix_s(), now)});
  }
  std::cout << Table(rows);
  return kExitOk;
}

int RunRemove(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("apps remove takes one NAME or ID");
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto apps = (*client)->ListApps();
  if (!apps.ok()) return Fail(apps.status());
  const std::string& wanted = args.positional()[0];
  for (const v1::AppInfo& app : apps->apps()) {
    if (app.app() != wanted && app.app_id() != wanted) continue;
    v1::RemoveAppRequest request;
    request.set_app_id(app.app_id());
    const auto removed = (*client)->RemoveApp(request);
    if (!removed.ok()) return Fail(removed.status());
    std::cout << "removed app " << app.app() << " with " << Counted(app.contexts(), "context")
              << "\n";
    return kExitOk;
  }
  return Fail(absl::NotFoundError("no app \"" + wanted + "\": `withyctl apps list` shows them"));
}

}  // namespace

std::vector<Command> AppCommands() {
  const Flag json{"json", "", "print JSON"};
  return {
      {"apps bind", "NAME",
       "register an app (or renew its token, using its present one), store the token and use it",
       WithConnection({{"print", "",
                        "for scripts: print only the token, the stored one while it is valid; the "
                        "default app does not change"},
                       json}),
       RunBind},
      {"apps renew", "NAME",
       "give an app whose token is lost a new one (as the operator: calls context_store)",
       WithConnection(
           {{"print", "", "for scripts: print only the token; the default app does not change"},
            json}),
       RunRenew},
      {"apps list", "", "list all apps (calls context_store)", WithConnection({json}), ListApps},
      {"apps remove", "NAME", "remove an app, its token and all of its contexts",
       WithConnection({}), RunRemove},
  };
}

}  // namespace withy::cli
