package headrace.spark;

import io.netty.bootstrap.Bootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.ChannelPipeline;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.codec.http2.DefaultHttp2Headers;
import io.netty.handler.codec.http2.DefaultHttp2HeadersFrame;
import io.netty.handler.codec.http2.Http2Connection;
import io.netty.handler.codec.http2.Http2FrameCodec;
import io.netty.handler.codec.http2.Http2FrameCodecBuilder;
import io.netty.handler.codec.http2.Http2Headers;
import io.netty.handler.codec.http2.Http2MultiplexHandler;
import io.netty.handler.codec.http2.Http2Settings;
import io.netty.handler.codec.http2.Http2StreamChannel;
import io.netty.handler.codec.http2.Http2StreamChannelBootstrap;
import io.netty.handler.ssl.ApplicationProtocolConfig;
import io.netty.handler.ssl.ApplicationProtocolNames;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import io.netty.handler.ssl.SslHandler;
import io.netty.handler.ssl.SslProvider;
import io.netty.util.concurrent.DefaultThreadFactory;
import io.netty.util.concurrent.Future;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * A connection to a hub: just enough of gRPC to speak Arrow Flight, over the HTTP/2 codec of the Netty that Spark
 * ships. Safe for all threads. There is one for each hub and JVM, made when it is first needed and again when it has
 * ended, and one thread of the network for all of them.
 */
final class Grpc {
  private static final int WINDOW_BYTES = 16 << 20;
  private static final int FRAME_BYTES_MAX = 1 << 20;
  private static final int HTTP2_WINDOW_DEFAULT = 65_535;
  private static final int CONNECT_TIMEOUT_MS = 5_000;
  private static final String SERVICE = "/arrow.flight.protocol.FlightService/";
  private static final EventLoopGroup LOOP =
      new MultiThreadIoEventLoopGroup(1, new DefaultThreadFactory("headrace", true), NioIoHandler.newFactory());
  private static final ConcurrentHashMap<Access, Grpc> SHARED = new ConcurrentHashMap<>();
  private final Access access;
  private volatile Channel connection;

  private Grpc(Access access) {
    this.access = access;
  }

  static Grpc to(Access access) {
    return SHARED.computeIfAbsent(access, Grpc::new);
  }

  /** Do something later, in the network's thread. */
  static void later(Runnable action, long delayMs) {
    LOOP.schedule(action, delayMs, TimeUnit.MILLISECONDS);
  }

  /** Begin a call of a Flight method; see `Call` for `listener`. */
  Call call(String method, Consumer<byte[]> listener) throws IOException {
    Call call = new Call(access.address(), listener);
    Http2StreamChannelBootstrap bootstrap = new Http2StreamChannelBootstrap(connected()).handler(call);
    Http2StreamChannel stream = got(bootstrap.open());
    call.open(stream);
    Http2Headers headers = new DefaultHttp2Headers().method("POST").scheme(access.isTls() ? "https" : "http")
        .authority(access.authority()).path(SERVICE + method);
    headers.set("content-type", "application/grpc").set("te", "trailers");
    if (access.token() != null) {
      headers.set("authorization", "Bearer " + access.token());
    }
    stream.writeAndFlush(new DefaultHttp2HeadersFrame(headers));
    return call;
  }

  private Channel connected() throws IOException {
    Channel known = connection;
    if (known != null && known.isActive()) {
      return known;
    }
    synchronized (this) {
      if (connection == null || !connection.isActive()) {
        connection = connect();
      }
      return connection;
    }
  }

  private Channel connect() throws IOException {
    SslContext tls = access.isTls() ? tls() : null;
    Http2Settings settings = Http2Settings.defaultSettings();
    settings.initialWindowSize(WINDOW_BYTES).maxFrameSize(FRAME_BYTES_MAX);
    Http2FrameCodec codec = Http2FrameCodecBuilder.forClient().initialSettings(settings).build();
    ChannelFuture connecting = new Bootstrap().group(LOOP).channel(NioSocketChannel.class)
        .option(ChannelOption.TCP_NODELAY, true).option(ChannelOption.CONNECT_TIMEOUT_MILLIS, CONNECT_TIMEOUT_MS)
        .handler(new ChannelInitializer<Channel>() {
          @Override
          protected void initChannel(Channel channel) {
            ChannelPipeline pipeline = channel.pipeline();
            if (tls != null) {
              pipeline.addLast(tls.newHandler(channel.alloc(), access.host(), access.port()));
            }
            pipeline.addLast(codec, new Http2MultiplexHandler(new ChannelInboundHandlerAdapter()));
          }
        }).connect(access.host(), access.port());
    got(connecting);
    Channel channel = connecting.channel();
    if (tls != null) {
      got(channel.pipeline().get(SslHandler.class).handshakeFuture());
    }
    got(channel.eventLoop().submit(() -> {
      Http2Connection http2 = codec.connection();
      http2.local().flowController().incrementWindowSize(http2.connectionStream(), WINDOW_BYTES - HTTP2_WINDOW_DEFAULT);
      return null;
    }));
    return channel;
  }

  private SslContext tls() throws IOException {
    SslContextBuilder builder = SslContextBuilder.forClient().sslProvider(SslProvider.JDK);
    if (access.ca() != null) {
      try {
        builder.trustManager(new ByteArrayInputStream(access.ca().getBytes(StandardCharsets.UTF_8)));
      } catch (IllegalArgumentException malformed) {
        throw new BadOption("ca", "…", "certificates in PEM (" + malformed.getMessage() + ")");
      }
    }
    return builder.applicationProtocolConfig(new ApplicationProtocolConfig(ApplicationProtocolConfig.Protocol.ALPN,
        ApplicationProtocolConfig.SelectorFailureBehavior.NO_ADVERTISE,
        ApplicationProtocolConfig.SelectedListenerFailureBehavior.ACCEPT, ApplicationProtocolNames.HTTP_2)).build();
  }

  private <T> T got(Future<T> future) throws IOException {
    try {
      future.await();
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while connecting to the hub");
    }
    if (!future.isSuccess()) {
      throw HubError.unreachable("the hub at " + access + " cannot be reached: " + future.cause().getMessage());
    }
    return future.getNow();
  }
}
