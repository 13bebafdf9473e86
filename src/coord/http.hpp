// Http makes HTTP/1.1 requests to etcd's gateway, through libcurl. It posts a JSON text and returns the reply.
// HttpStream makes a request whose reply never ends by itself, for a watch. It passes the reply on line by line.
//
// Several threads may use an Http. An Http keeps connections open for later requests. Only one thread may use an
// HttpStream, but any thread may call wake(). Neither class follows redirects or uses proxies from the environment.
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
  std::string ca;                // authorities to trust; empty: the system's
  std::string certificate, key;  // empty: this side shows no certificate
};

struct HttpRequest {
  std::string url;
  std::string body;           // JSON
  std::string authorization;  // value of the Authorization header; empty: no such header
};

struct HttpReply {
  long status = 0;
  std::string body;
};

// Thrown if no complete reply came.
class HttpTrouble : public std::runtime_error {
 public:
  enum class Kind {
    unreachable,  // no connection, so nothing was sent
    tls,          // one side does not accept the other's certificate, or the TLS handshake failed
    broken        // a request was sent, but no complete reply came
  };
  HttpTrouble(Kind kind, const std::string& why, bool was_sent)
      : std::runtime_error(why), kind_(kind), was_sent_(was_sent) {}
  Kind kind() const { return kind_; }
  // True if part of the request was sent, so that the server may have carried it out.
  bool was_sent() const { return was_sent_; }

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

  // With `sent_once`, sends the request over a new connection and at most once. Otherwise libcurl uses an open
  // connection, and sends the request again if that connection turns out to be dead. Throws HttpTrouble.
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

  // If the reply has status 200, passes each of its lines to `on_line` as it arrives. Returns any other reply whole.
  // Returns when the server ends the reply, or when `goes_on` returns false. Calls `goes_on` at least once a second,
  // and after wake(). Throws HttpTrouble if no byte arrives for `silence_ms`.
  HttpReply run(const HttpRequest& request, std::int64_t silence_ms, const std::function<bool()>& goes_on,
                const std::function<void(const std::string&)>& on_line);

  // Waits for `milliseconds`, or until wake() is called.
  void pause(int milliseconds);
  void wake();  // [any thread]

 private:
  const TlsFiles tls_;
  void* const multi_;
};

}  // namespace ckpt::coord
