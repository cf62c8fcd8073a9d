package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.handler.codec.http2.DefaultHttp2DataFrame;
import io.netty.handler.codec.http2.DefaultHttp2ResetFrame;
import io.netty.handler.codec.http2.Http2DataFrame;
import io.netty.handler.codec.http2.Http2Error;
import io.netty.handler.codec.http2.Http2HeadersFrame;
import io.netty.handler.codec.http2.Http2ResetFrame;
import io.netty.handler.codec.http2.Http2StreamChannel;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;

/**
 * One gRPC call: an HTTP/2 stream. The network's thread puts messages into a queue and stops reading from this stream
 * while much is waiting; HTTP/2 then stops the hub. One other thread takes them; `send` and `cancel` are for all.
 *
 * <p>Invariant: the end of the call comes behind every message that came before it.
 */
final class Call extends ChannelInboundHandlerAdapter {
  static final byte[] END = new byte[0];
  private static final long WAITING_BYTES_HIGH = 16 << 20;
  private static final long WAITING_BYTES_LOW = 4 << 20;
  private final String address;
  private final Consumer<byte[]> listener;
  private final LinkedBlockingQueue<byte[]> inbox = new LinkedBlockingQueue<>();
  private final AtomicLong waitingBytes = new AtomicLong();
  private final Messages messages = new Messages(this::deliver);
  private volatile Http2StreamChannel channel;
  private volatile boolean isOver;
  private volatile HubError error;
  private JsonNode refusal;

  /** Messages go to `listener`, in the network's thread, or without one into the queue. The last is `END`. */
  Call(String address, Consumer<byte[]> listener) {
    this.address = address;
    this.listener = listener;
  }

  void open(Http2StreamChannel opened) {
    channel = opened;
  }

  /** Send a message, and with `isLast` end our side of the call. */
  void send(byte[] message, boolean isLast) {
    ByteBuf header = Unpooled.buffer(Messages.HEADER_BYTES).writeByte(0).writeInt(message.length);
    ByteBuf both = Unpooled.wrappedBuffer(header, Unpooled.wrappedBuffer(message));
    channel.writeAndFlush(new DefaultHttp2DataFrame(both, isLast));
  }

  /** End our side of the call. */
  void end() {
    channel.writeAndFlush(new DefaultHttp2DataFrame(true));
  }

  /** End the call now, whatever is on its way. */
  void cancel() {
    Http2StreamChannel open = channel;
    if (open != null && open.isActive()) {
      if (!isOver) {
        open.writeAndFlush(new DefaultHttp2ResetFrame(Http2Error.CANCEL));
      }
      open.close();
    }
  }

  boolean isOver() {
    return isOver;
  }

  boolean isEmpty() {
    return inbox.isEmpty();
  }

  /** Why the call ended; null while it has not, or when it ended well. */
  HubError error() {
    return error;
  }

  /** The next message; null when none came in time, or when the call is over: `isOver` and `error` tell which. */
  byte[] next(long timeoutMs) throws IOException {
    byte[] message;
    try {
      message = inbox.poll();
      if (message == null) {
        message = inbox.poll(timeoutMs, TimeUnit.MILLISECONDS);
      }
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
      cancel();
      throw new InterruptedIOException("interrupted while waiting for the hub");
    }
    if (message == null) {
      return null;
    }
    if (message == END) {
      inbox.add(END);
      return null;
    }
    if (waitingBytes.addAndGet(-message.length) < WAITING_BYTES_LOW && !channel.config().isAutoRead()) {
      channel.config().setAutoRead(true);
    }
    return message;
  }

  @Override
  public void channelRead(ChannelHandlerContext context, Object frame) {
    if (frame instanceof Http2DataFrame data) {
      takeData(data);
    } else if (frame instanceof Http2HeadersFrame headers) {
      takeHeaders(headers);
    } else if (frame instanceof Http2ResetFrame) {
      finish(HubError.unreachable("the hub at " + address + " broke the call off"));
    }
  }

  @Override
  public void channelInactive(ChannelHandlerContext context) {
    finish(HubError.unreachable("the connection to the hub at " + address + " ended"));
  }

  @Override
  public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
    finish(HubError.unreachable("the connection to the hub at " + address + " failed: " + cause));
    cancel();
  }

  private void takeData(Http2DataFrame data) {
    try {
      messages.take(data.content());
    } catch (IOException broken) {
      finish(new HubError("malformed", broken.getMessage()));
      cancel();
    } finally {
      data.release();
    }
    if (data.isEndStream()) {
      finish(new HubError("malformed", "the hub at " + address + " ended a call without a status"));
    } else if (listener == null && waitingBytes.get() > WAITING_BYTES_HIGH) {
      channel.config().setAutoRead(false);
    }
  }

  private void takeHeaders(Http2HeadersFrame headers) {
    CharSequence details = headers.headers().get("grpc-status-details-bin");
    if (details != null) {
      refusal = decoded(details.toString());
    }
    if (headers.isEndStream()) {
      CharSequence status = headers.headers().get("grpc-status");
      CharSequence text = headers.headers().get("grpc-message");
      finish(errorOf(status == null ? "2" : status.toString(), text == null ? "" : text.toString()));
    }
  }

  private static JsonNode decoded(String base64) {
    try {
      String unpadded = base64.replace("=", "");
      return Hub.JSON.readTree(new String(Base64.getDecoder().decode(unpadded), StandardCharsets.UTF_8));
    } catch (IOException | IllegalArgumentException malformed) {
      return null;
    }
  }

  private HubError errorOf(String status, String text) {
    if (status.equals("0")) {
      return messages.isInside() ? new HubError("malformed", "the hub ended a call inside a message") : null;
    }
    if (refusal != null && refusal.hasNonNull("code")) {
      return new HubError(refusal.get("code").asText(), refusal.path("message").asText());
    }
    return switch (status) {
      case "1", "4", "13", "14" -> HubError.unreachable("the hub at " + address + " does not answer: " + text);
      case "7" -> new HubError("forbidden", text);
      case "16" -> new HubError("unauthenticated", text);
      default -> new HubError("error", "the hub at " + address + " failed: " + text + " (grpc status " + status + ")");
    };
  }

  private void finish(HubError why) {
    if (!isOver) {
      error = why;
      isOver = true;
      deliver(END);
    }
  }

  private void deliver(byte[] message) {
    if (listener != null) {
      listener.accept(message);
      return;
    }
    waitingBytes.addAndGet(message.length);
    inbox.add(message);
  }
}
