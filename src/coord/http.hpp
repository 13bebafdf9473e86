// Http makes HTTP/1.1 requests to etcd's gateway, through libcurl. It posts a JSON text and returns the reply.
// HttpStream is for a watch: its reply comes line by line for as long as both sides live.
//
// Several threads may use an Http, which keeps connections open for the next request. One thread uses an HttpStream;
// any thread may call wake(). Neither follows redirects or uses proxies from the environment.
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
  std::string certificate, key;  // empty: this side shows no certificate
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

// Thrown if no complete reply came.
class HttpTrouble : public std::runtime_error {
 public:
  enum class Kind {
    unreachable,  // nothing was sent
    tls,          // the two sides do not accept each other
    broken        // a request was sent, but no complete reply came
  };
  HttpTrouble(Kind kind, const std::string& why, bool was_sent)
      : std::runtime_error(why), kind_(kind), was_sent_(was_sent) {}
  Kind kind() const { return kind_; }
  bool was_sent() const { return was_sent_; }  // some of the request was sent: it may have been carried out

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

  // `sent_once`: sends the request at most once, over a new connection. Over an old connection that turns out to be
  // dead, libcurl would send it again.
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

  // Passes on every line of a reply with status 200, and returns any other reply whole. Ends when the server ends it,
  // when `goes_on` returns false (asked at least once a second, and after wake()), or with HttpTrouble after
  // `silence_ms` without a byte.
  HttpReply run(const HttpRequest& request, std::int64_t silence_ms, const std::function<bool()>& goes_on,
                const std::function<void(const std::string&)>& on_line);

  // Returns after wake(), or when the time has passed.
  void pause(int milliseconds);
  void wake();  // [any thread]

 private:
  const TlsFiles tls_;
  void* const multi_;
};

}  // namespace ckpt::coord
