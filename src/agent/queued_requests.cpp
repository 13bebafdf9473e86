#include "agent/queued_requests.hpp"

#include <utility>

namespace ckpt::agent {

void QueuedRequests::hello(const core::TrainerHello& hello, std::int64_t pid, Respond respond) {
  queue_.post([this, hello, pid, respond = std::move(respond)] { trainers_.hello(hello, pid, respond); });
}

void QueuedRequests::exited(Asker asker, bool died) {
  queue_.post([this, asker, died] { trainers_.exited(asker, died); });
}

void QueuedRequests::restore(Asker asker, const RestoreRequest& request, Respond respond) {
  queue_.post([this, asker, request, respond = std::move(respond)] { trainers_.restore(asker, request, respond); });
}

void QueuedRequests::restored(Asker asker, std::string no_replication, Respond respond) {
  queue_.post([this, asker, no_replication = std::move(no_replication), respond = std::move(respond)] {
    trainers_.restored(asker, no_replication, respond);
  });
}

void QueuedRequests::corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, Respond respond) {
  queue_.post([this, asker, request, timeout_ms, respond = std::move(respond)] {
    trainers_.corrupt(asker, request, timeout_ms, respond);
  });
}

void QueuedRequests::reserve(Asker asker, const ReserveRequest& request, Respond respond) {
  queue_.post([this, asker, request, respond = std::move(respond)] { trainers_.reserve(asker, request, respond); });
}

void QueuedRequests::trouble(Asker asker, std::string text, Respond respond) {
  queue_.post(
      [this, asker, text = std::move(text), respond = std::move(respond)] { trainers_.trouble(asker, text, respond); });
}

void QueuedRequests::status(Respond respond) {
  queue_.post([this, respond = std::move(respond)] { respond({CKPT_OK, "", {{"agent", status_json(status_)}}, {}}); });
}

void QueuedRequests::trace(Respond respond) {
  queue_.post([this, respond = std::move(respond)] { respond({CKPT_OK, "", {{"trace", trace_json(status_)}}, {}}); });
}

void QueuedRequests::health(Respond respond) {
  queue_.post([this, respond = std::move(respond)] {
    respond({CKPT_OK, "", {{"health", status_.health.report()}}, {}});
  });
}

void QueuedRequests::stop(Respond respond) {
  queue_.post([this, respond = std::move(respond)] {
    try {
      arena_.mark_stopped();
    } catch (const Failure& failure) {
      event_log_.note(failure.what());  // trainers will start another agent
    }
    respond({});
    agent_.stop(EndReason::asked, "somebody asked it to, as ckptctl stop does");
  });
}

}  // namespace ckpt::agent
