//! A server on a thread of its own, for callers without a runtime.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mooncake_client::Store;
use mooncake_os::{Guarded, forked};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::pages::{ShownStore, router};

/// What a page that is being made may still take when the server ends.
const LAST_PAGES: Duration = Duration::from_millis(100);

/// Serves until it is dropped. In a forked child there is no server.
#[derive(Debug)]
pub struct ClientServer {
    address: SocketAddr,
    shown: Arc<ShownStore>,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl ClientServer {
    /// Listens at an address; port 0 is any free one. Fails as binding does.
    ///
    /// The pages say that no store is set up until [`ClientServer::show`].
    pub fn open(address: SocketAddr) -> io::Result<ClientServer> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
        let listener = {
            let _inside = runtime.enter();
            Guarded::new(TcpListener::from_std(listener)?)
        };
        let shown = Arc::new(ShownStore::default());
        let (end, ended) = oneshot::channel();
        let pages = shown.clone();
        let builder = std::thread::Builder::new().name("mooncake-http".into());
        let thread = mooncake_os::thread::start(builder, move || serve(runtime, listener, pages, ended))?;
        Ok(ClientServer { address, shown, thread: Some((end, thread)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the pages are about this store: the first one that is shown.
    pub fn show(&self, store: &Store) {
        let _ = self.shown.store.set(store.clone());
    }
}

fn serve(runtime: Runtime, listener: Guarded<TcpListener>, shown: Arc<ShownStore>, ended: oneshot::Receiver<()>) {
    let router = router(shown);
    runtime.block_on(async {
        tokio::select! {
            () = mooncake_http::accept(move || (router.clone(), true), listener, mooncake_http::Limits::default()) => {}
            _ = ended => {}
        }
    });
    runtime.shutdown_timeout(LAST_PAGES);
}

impl Drop for ClientServer {
    fn drop(&mut self) {
        let Some((end, thread)) = self.thread.take() else { return };
        if forked() {
            // The thread is the parent's.
            std::mem::forget((end, thread));
            return;
        }
        drop(end);
        if thread.join().is_err() {
            tracing::error!("the HTTP server panicked");
        }
    }
}
