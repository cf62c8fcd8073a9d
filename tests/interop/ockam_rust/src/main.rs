//! ockam-stream-peer responder <hub>            echoes every text that arrives, until it is killed
//! ockam-stream-peer initiator <hub> <text>...  sends each text and prints the echo

use ockam::{route, stream::Stream, Context, Result, Routed, TcpTransport, Worker, TCP};
use std::time::Duration;

const TO_INITIATOR: &str = "to-initiator";
const TO_RESPONDER: &str = "to-responder";

struct Echo;

#[ockam::worker]
impl Worker for Echo {
    type Context = Context;
    type Message = String;

    async fn handle_message(&mut self, context: &mut Context, message: Routed<String>) -> Result<()> {
        context.send(message.return_route(), message.body()).await
    }
}

#[ockam::node]
async fn main(mut context: Context) -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let (role, hub) = (arguments[1].as_str(), arguments[2].as_str());
    TcpTransport::create(&context).await?;
    let stream = Stream::new(&context)
        .await?
        .stream_service("stream")
        .index_service("stream_index")
        .client_id(role)
        .with_interval(Duration::from_millis(50));
    if role == "responder" {
        context.start_worker("echo", Echo).await?;
        stream.connect(route![(TCP, hub)], TO_INITIATOR, TO_RESPONDER).await?;
        return Ok(());
    }
    let (sender, _) = stream.connect(route![(TCP, hub)], TO_RESPONDER, TO_INITIATOR).await?;
    for text in &arguments[3..] {
        context.send(sender.to_route().append("echo"), text.clone()).await?;
        println!("echo: {}", context.receive::<String>().await?.take().body());
    }
    context.stop().await
}
