// HTTP/1.1 by libcurl, as etcd's gateway is spoken to: a JSON text is posted, and a reply comes back at once or, for a
// watch, line by line for as long as both sides live.
//
// Http may be used from several threads; its connections stay open for the next call. HttpStream belongs to one thread,
// but for wake(). Neither follows redirects nor asks the environment for proxies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace ckpt::coord {

struct TlsFiles {                // paths of PEM files
  std::string ca;                // empty: the system's
  std::string certificate, key;  // empty: this side shows none
};

struct HttpRequest {
  std::string url;
  std::string body;           // JSON
  std::string authorization;  // header of that name; empty: none
};

struct HttpReply {
  long status = 0;
  std::string body;
};

// No whole reply came.
class HttpTrouble : public std::runtime_error {
 public:
  enum class Kind {
    unreachable,  // nothing was sent
    tls,          // the two sides do not accept each other
    broken        // what was sent got no whole reply
  };
  HttpTrouble(Kind kind, const std::string& why, bool was_sent)
      : std::runtime_error(why), kind_(kind), was_sent_(was_sent) {}
  Kind kind() const { return kind_; }
  bool was_sent() const { return was_sent_; }  // any of the request: it may have been carried out

 private:
  Kind kind_;
  bool was_sent_;
};

struct CurlEasyDelete {
  void operator()(void* handle) const;
};
using CurlEasy = std::unique_ptr<void, CurlEasyDelete>;

class Http {
 public:
  explicit Http(TlsFiles tls);

  // `sent_once`: on a connection of its own, since libcurl sends again by itself what was sent on one that had died.
  HttpReply post(const HttpRequest& request, std::int64_t timeout_ms, bool sent_once);

 private:
  CurlEasy take_idle();

  const TlsFiles tls_;
  std::mutex mutex_;
  std::vector<CurlEasy> idle_;  // each with a connection
};

class HttpStream {
 public:
  explicit HttpStream(TlsFiles tls);
  ~HttpStream();
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  // Hands on every line of a reply of status 200; another reply is returned whole. Ends when the server ends it, when
  // `goes_on` says no (asked at least once a second, and after wake()), or after `silence_ms` without a byte, which is
  // an HttpTrouble.
  HttpReply run(const HttpRequest& request, std::int64_t silence_ms, const std::function<bool()>& goes_on,
                const std::function<void(const std::string&)>& on_line);

  // Returns after wake(), or when the time is over.
  void pause(int milliseconds);
  void wake();  // [any thread]

 private:
  const TlsFiles tls_;
  void* const multi_;
};

}  // namespace ckpt::coord
