// withyctl apps: registering apps, and the operator's view of them.
#include <iostream>

#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"

namespace withy::cli {
namespace {

// Prints or keeps what `app` was given.
int Keep(const Args& args, const std::string& app,
         const absl::StatusOr<v1::BindAppResponse>& bound) {
  if (!bound.ok()) return Fail(bound.status());
  if (args.Has("print")) {
    std::cout << bound->token() << "\n";
    return kExitOk;
  }
  if (const absl::Status saved = SaveToken(bound->token()); !saved.ok()) return Fail(saved);
  if (args.Has("json")) {
    std::cout << ToJson(*bound) << "\n";
  } else {
    std::cout << "app " << app << " is " << bound->app_id() << "; its token is kept in "
              << TokenPath() << " and used from now on\n";
  }
  return kExitOk;
}

int RunBind(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("apps bind takes one NAME");
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  v1::BindAppRequest request;
  request.set_app(args.positional()[0]);
  return Keep(args, request.app(), (*client)->BindApp(request));
}

int RunRenew(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("apps renew takes one NAME");
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const std::string& app = args.positional()[0];
  return Keep(args, app, (*client)->RenewApp(app));
}

int RunList(const Args& args) {
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto apps = (*client)->ListApps();
  if (!apps.ok()) return Fail(apps.status());
  if (args.Has("json")) {
    std::cout << ToJson(*apps) << "\n";
    return kExitOk;
  }
  const int64_t now = Clock::Real().UnixNanos() / kNanosPerSecond;
  std::vector<std::vector<std::string>> rows = {{"APP", "ID", "CONTEXTS", "BOUND"}};
  for (const v1::AppInfo& app : apps->apps()) {
    rows.push_back(
        {app.app(), app.app_id(), std::to_string(app.contexts()), Ago(app.created_unix_s(), now)});
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
    std::cout << "removed app " << app.app() << " with " << app.contexts() << " contexts\n";
    return kExitOk;
  }
  return Fail(absl::NotFoundError("no app \"" + wanted + "\": `withyctl apps list` shows them"));
}

}  // namespace

std::vector<Command> AppCommands() {
  return {
      {"apps bind", "NAME",
       "register an app (or renew its token, with its present one) and keep the token",
       WithConnection(
           {{"print", "", "print the token instead of keeping it"}, {"json", "", "print JSON"}}),
       RunBind},
      {"apps renew", "NAME",
       "give an app whose token is lost a new one (asks context_store itself, as the operator)",
       WithConnection(
           {{"print", "", "print the token instead of keeping it"}, {"json", "", "print JSON"}}),
       RunRenew},
      {"apps list", "", "all apps (asks context_store itself)",
       WithConnection({{"json", "", "print JSON"}}), RunList},
      {"apps remove", "NAME", "remove an app, its token and all of its contexts",
       WithConnection({}), RunRemove},
  };
}

}  // namespace withy::cli
