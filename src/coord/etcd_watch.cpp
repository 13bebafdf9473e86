#include "coord/etcd_watch.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "coord/etcd_entries.hpp"
#include "coord/etcd_store.hpp"

namespace ckpt::coord {
namespace {

using nlohmann::json;

constexpr int first_pause_ms = 200;
constexpr int longest_pause_ms = 2000;

}  // namespace

EtcdWatch::EtcdWatch(std::shared_ptr<EtcdClient> client, std::string prefix,
                     std::function<void(const Entry&)> on_change)
    : client_(std::move(client)),
      prefix_(std::move(prefix)),
      on_change_(std::move(on_change)),
      stream_(client_->tls()),
      thread_(start_thread("ckptd-watch", [this] { run(); })) {}

EtcdWatch::~EtcdWatch() {
  stop_ = true;
  stream_.wake();
  thread_.join();
}

void EtcdWatch::run() {
  for (int pause_ms = first_pause_ms; !stop_; pause_ms = std::min(2 * pause_ms, longest_pause_ms)) {
    has_received_ = false;
    try {
      if (next_revision_ == 0) notify_all();
      follow();
    } catch (const std::exception&) {
      // Not reported: the owner of the watch also reads the store now and then, and that call reports the error.
    }
    if (has_received_) pause_ms = first_pause_ms;
    if (!stop_) stream_.pause(pause_ms);
  }
}

void EtcdWatch::notify_all() {
  const EtcdStore::Content content = EtcdStore(client_, prefix_).notified_content();
  has_received_ = true;
  std::set<std::string> gone = there_;
  for (const Entry& entry : content.entries) {
    gone.erase(entry.key);
    notify(entry);
  }
  for (const std::string& key : gone) notify({key, "", 0});
  next_revision_ = content.revision + 1;
}

void EtcdWatch::notify(const Entry& entry) {
  if (entry.revision == 0)
    there_.erase(entry.key);
  else
    there_.insert(entry.key);
  on_change_(entry);
}

void EtcdWatch::follow() {
  json create = keys_between(prefix_, prefix_ + std::string(unwatched_from));
  create["start_revision"] = std::to_string(next_revision_);
  client_->stream(
      stream_, "/v3/watch", {{"create_request", create}}, [this] { return !stop_; },
      [this](const json& message) { take(message); });
}

void EtcdWatch::take(const json& message) {
  if (flag_field(message, "canceled")) {
    if (number_field(message, "compact_revision") != 0) next_revision_ = 0;  // etcd has dropped the next change
    throw Failure(CKPT_ERR_SYSTEM, "etcd ended this agent's watch (" + text_field(message, "cancel_reason") +
                                       "); the agent starts another one");
  }
  // etcd's revision is lower than one that it reported before. It would report nothing until it reaches that one again.
  if (flag_field(message, "created") && number_field(field(message, "header"), "revision") + 1 < next_revision_) {
    next_revision_ = 0;
    throw Failure(
        CKPT_ERR_SYSTEM,
        "etcd was restored from an older state, so its revisions went back; the agent reads all records again");
  }
  has_received_ = true;
  for (const json& event : field(message, "events")) {
    Entry entry = entry_of(field(event, "kv"), prefix_);
    next_revision_ = std::max(next_revision_, entry.revision + 1);
    if (text_field(event, "type") == "DELETE") entry.revision = 0;
    if (is_key(entry.key)) notify(entry);
  }
}

}  // namespace ckpt::coord
