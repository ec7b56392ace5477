// The fleet page: ties stream, map, card, figures and controls together. What is shown is kept in the address.
import { streamAddress } from "../socket.js";
import { readAddress, writeAddress } from "./address.js";
import { Controls } from "./controls.js";
import { showFigures } from "./figures.js";
import { readFilter } from "./filter.js";
import { chooseGroups, choosingColumns, countOf, holdersNeeded, moves, sameGroups } from "./groups.js";
import { Heatmap } from "./heatmap.js";
import { Holders } from "./holders.js";
import { CARD_COLUMNS, HoverCard } from "./hover.js";
import { MEASURES } from "./measures.js";
import { Status } from "./status.js";
import { FleetStream } from "./stream.js";

const ADDRESS_AFTER_MS = 250;
const CARD_RESTS_MS = 120;

class FleetPage {
  constructor(page) {
    const { place, ...view } = readAddress(location.search);
    this.page = page;
    this.view = view;
    this.placeToTake = place; // of the address, until there is a map to look at
    this.forgetFleet();
    this.cardShown = false;
    this.sequence = -1;
    this.status = new Status(page);
    this.controls = new Controls(page, {
      onChange: (part) => this.change(part),
      onZoom: (step) => this.map.camera.step(step),
    });
    this.card = new HoverCard(document.getElementById("device-card"), page.dataset.cardUrl);
    this.holders = new Holders(page.dataset.holdersUrl, () => this.choose());
    this.map = new Heatmap(page.querySelector(".heat"), {
      onPoint: (row, bounds, byKey) => this.pointAt(row, bounds, byKey),
      onOpen: (row) => this.open(row),
      onMove: () => this.keepAddressSoon(),
    });
    this.stream = new FleetStream(streamAddress(page.dataset.stream), this.wanted(), {
      onLayout: (layout) => this.takeLayout(layout),
      onFrame: (columns, header) => this.takeFrame(columns, header),
      onState: (state) => this.status.setState(state),
    });
    document.addEventListener("gpuplane:theme", () => this.controls.showLegend(this.view.by, this.map));
    this.showView();
  }

  /** Nothing is known, or what was known is of another layout. */
  forgetFleet(layout = null) {
    this.layout = layout;
    this.columns = null;
    this.groups = null;
    this.pointedRow = null;
    this.unsaid = null; // the row that the keyboard came to, until there is something to say of it
  }

  get chosen() {
    const { type, state, group, q } = this.view;
    return { type, state, group, terms: readFilter(q) };
  }

  /** The columns that what is shown needs; the flags come by themselves. */
  wanted() {
    const ofCard = this.cardShown ? CARD_COLUMNS : [];
    const names = [...MEASURES[this.view.by].columns, ...choosingColumns(this.chosen), ...ofCard];
    return [...new Set(names)].sort();
  }

  lookAtWanted() {
    const names = this.wanted();
    this.stream.lookAt(names);
    this.page.dataset.columns = names.join();
  }

  /** Show another view: part of {by, group, type, state, q}. It starts over unless only the colours change. */
  change(part) {
    Object.assign(this.view, part);
    if (Object.keys(part).join() !== "by") this.map.camera.step(0);
    this.showView();
    this.choose();
    this.keepAddressSoon();
  }

  showView() {
    this.map.setMeasure(this.view.by);
    this.controls.show(this.view, this.chosen.terms);
    this.controls.showLegend(this.view.by, this.map);
    this.holders.follow(holdersNeeded(this.chosen));
    this.lookAtWanted();
  }

  takeLayout(layout) {
    if (this.map.plan && !this.placeToTake) this.placeToTake = this.map.camera.position();
    this.forgetFleet(layout);
    this.card.hide();
    this.map.forget();
    this.view.type = this.controls.offerTypes(layout.types, this.view.type);
  }

  takeFrame(columns, header) {
    this.columns = columns;
    this.status.setConditions(header.conditions);
    if (!this.groups || moves(this.chosen)) this.choose();
    if (this.groups) this.map.update(columns);
    showFigures(header.figures, header.sequence !== this.sequence);
    this.sequence = header.sequence;
    this.speak();
    if (this.pointedRow !== null && this.map.pointed >= 0) this.showCard(this.map.boundsOf(this.map.pointed));
    this.page.dataset.frames = String(Number(this.page.dataset.frames ?? 0) + 1);
  }

  /** Choose what is shown, once what it depends on is known; the map is arranged anew only when that differs. */
  choose() {
    const { layout, columns, chosen, holders, map } = this;
    if (!layout || !columns || !holders.knows(holdersNeeded(chosen))) return;
    if (!choosingColumns(chosen).every((name) => this.stream.knows(name))) return;
    const next = chooseGroups(layout, columns, chosen, (key, device) => holders.of(key, device));
    if (sameGroups(this.groups, next)) return;
    this.groups = next;
    map.show(next, layout.devices.length);
    if (this.placeToTake && next.length) {
      map.camera.restore(this.placeToTake);
      this.placeToTake = null;
    }
    this.page.dataset.groups = JSON.stringify(next.map(({ name, count }) => [name, count]));
    this.page.dataset.shown = String(countOf(next));
    this.controls.showCount(layout, countOf(next), Boolean(this.view.q || this.view.state));
  }

  pointAt(row, bounds, byKey) {
    this.pointedRow = row;
    this.restCard();
    if (row !== this.unsaid) this.unsaid = null;
    if (row === null || !this.columns) {
      this.card.hide();
      return;
    }
    this.showCard(bounds);
    if (byKey) this.unsaid = row;
    this.speak();
  }

  showCard(bounds) {
    const { pointedRow: row, layout, columns } = this;
    this.card.show(layout.devices[row], row, columns, (name) => this.stream.has(name), bounds);
  }

  /** The card's columns are asked for once the pointer rests, and left alone once it has gone. */
  restCard() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      this.cardShown = this.pointedRow !== null;
      this.lookAtWanted();
    }, CARD_RESTS_MS);
  }

  /** Say what the keyboard came to, once the stream has sent it: columns not looked at hold what was, or nothing. */
  speak() {
    if (this.unsaid === null) return;
    const known = this.map.wordColumns.every((name) => this.stream.knows(name));
    if (!known && this.status.isLive) return;
    this.controls.say(this.map.words(this.layout.devices[this.unsaid], this.unsaid, known));
    this.unsaid = null;
  }

  open(row) {
    const { node, type, minor } = this.layout.devices[row];
    this.keepAddress();
    location.assign(`${this.page.dataset.nodeUrl.replace("NODE", encodeURIComponent(node.name))}#${type}-${minor}`);
  }

  keepAddressSoon() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.keepAddress(), ADDRESS_AFTER_MS);
  }

  keepAddress() {
    clearTimeout(this.waiting);
    const address = location.pathname + writeAddress(this.view, this.placeToTake ?? this.map.camera.position());
    if (address !== location.pathname + location.search) history.replaceState(null, "", address);
  }
}

new FleetPage(document.getElementById("fleet"));
